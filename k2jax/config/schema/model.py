"""Architecture: attention, experts, vision tower, and the decoder of them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

AttentionKind = Literal["mla", "gqa"]
Kernels = Literal["auto", "xla", "pallas", "interpret"]


@dataclasses.dataclass(frozen=True)
class YarnConfig:
    """YaRN context extension (arXiv:2309.00071), as DeepSeek-V3, Kimi K2 and transformers configure it."""

    factor: PositiveFloat = 1.0  #: context extension factor; 1 turns YaRN off
    beta_fast: float = 32.0  #: rotations above which a frequency is left alone
    beta_slow: float = 1.0  #: rotations below which a frequency is fully interpolated
    mscale: float = 1.0  #: numerator of the rotary attention factor
    mscale_all_dim: float = 1.0  #: its denominator, 0 is none; mla: also scales the softmax by mscale(factor, this)^2
    original_positions: PositiveInt = 4096  #: context length before extension [tokens]


@dataclasses.dataclass(frozen=True)
class Llama3RopeConfig:
    """Context extension of Llama 3.1 and later (``rope_type: llama3``): slow frequencies are divided by the factor."""

    factor: PositiveFloat = 1.0  #: context extension factor; 1 turns it off
    low_freq_factor: float = 1.0  #: rotations over the original context below which a frequency is divided
    high_freq_factor: float = 4.0  #: rotations above which a frequency is left alone; blended in between
    original_positions: PositiveInt = 8192  #: context length before extension [tokens]


@dataclasses.dataclass(frozen=True)
class MLAConfig:
    """Widths of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434); read where ``model.attention`` is mla."""

    q_lora_rank: PositiveInt | None = 96  #: width of the query latent; None projects queries directly
    kv_lora_rank: PositiveInt = 64  #: width of the key-value latent
    qk_nope_dim: PositiveInt = 64  #: per-head query and key width without rotary positions
    qk_rope_dim: PositiveInt = 32  #: per-head query and key width with rotary positions; even
    v_dim: PositiveInt = 64  #: per-head value width

    @property
    def key_dim(self) -> int:
        """Per-head width of queries and keys."""
        return self.qk_nope_dim + self.qk_rope_dim

    @property
    def value_dim(self) -> int:
        """Per-head width of values."""
        return self.v_dim

    @property
    def rotary_dim(self) -> int:
        """Per-head width that rotary positions turn."""
        return self.qk_rope_dim

    @property
    def query_latent_dim(self) -> int:
        """Width of the query latent; 0 where queries are projected directly."""
        return self.q_lora_rank or 0

    @property
    def latent_dim(self) -> int:
        """Width of all latents with a norm: of queries, and of keys and values."""
        return self.query_latent_dim + self.kv_lora_rank


@dataclasses.dataclass(frozen=True)
class GQAConfig:
    """Grouped-query attention (arXiv:2305.13245); read where ``model.attention`` is gqa."""

    kv_heads: PositiveInt = 2  #: key-value heads, a divisor of heads; each serves consecutive query heads
    head_dim: PositiveInt = 64  #: per-head width of queries, keys and values; even
    qkv_bias: bool = False  #: bias on the query, key and value projections (Qwen2)
    qk_norm: bool = False  #: RMSNorm over head_dim of queries and keys before the rotation (Qwen3)

    @property
    def key_dim(self) -> int:
        """Per-head width of queries and keys."""
        return self.head_dim

    @property
    def value_dim(self) -> int:
        """Per-head width of values."""
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Per-head width that rotary positions turn."""
        return self.head_dim

    @property
    def query_latent_dim(self) -> int:
        """Width of the query latent, which this attention does not have."""
        return 0

    @property
    def latent_dim(self) -> int:
        """Width of all latents with a norm, of which this attention has none."""
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Sigmoid-routed experts (DeepSeek-V3, section 2.1.2); read where a model has more layers than dense layers."""

    experts: PositiveInt = 32  #: routed experts per layer
    active_experts: PositiveInt = 4  #: routed experts per token
    shared_experts: NonNegativeInt = 1  #: experts that see every token
    expert_groups: PositiveInt = 1  #: groups for group-limited routing; 1 turns it off
    active_groups: PositiveInt = 1  #: groups a token may route to
    routed_scaling: float = 2.827  #: factor on the routed experts' output
    normalize_gates: bool = True  #: gates of the chosen experts sum to 1 before scaling
    expert_ffn: PositiveInt = 128  #: hidden width of each expert
    capacity_factor: PositiveFloat = 1.06  #: share of expert work done as one batched matmul; the rest goes by blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """MoonViT-3D and its projector (Kimi K2.5, section 4.2), which make features of images and video for the decoder.

    Groups of 2 x 2 patches of a frame become one feature; the frames of a chunk of video share theirs.
    """

    layers: NonNegativeInt = 0  #: layers of the tower; 0 is a model without vision
    width: PositiveInt = 1152  #: width of the tower's residual stream
    heads: PositiveInt = 16  #: attention heads; their width is divisible by 4
    ffn: PositiveInt = 4304  #: hidden width of the feed-forward
    patch: PositiveInt = 14  #: side of a square patch [pixels]
    grid: PositiveInt = 64  #: side of the learned grid of positions, resampled to each image [positions]
    frames: PositiveInt = 4  #: most frames of a chunk, which share attention and features
    rope_theta: PositiveFloat = 10000.0  #: rotary base of both axes
    contrast: bool = False  #: temperature and bias of SigLIP's loss are learned, see train.contrast.weight
    projector_eps: NonNegativeFloat = 1e-5  #: epsilon of the projector's norm (the tower's always use 1e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder: the Kimi K2 (DeepSeek-V3) family, MLA attention and sigmoid-routed experts, or a dense one.

    Dense decoders (Llama, SmolLM2, Qwen2, Qwen3) have grouped-query attention and ``dense_layers`` equal to ``layers``.
    The group of the other kind of attention, and ``moe`` where no layer has experts, are not read.
    """

    layers: PositiveInt = 4  #: decoder layers in all
    dense_layers: NonNegativeInt = 1  #: leading layers with a dense feed-forward instead of experts
    d_model: PositiveInt = 256  #: width of the residual stream
    heads: PositiveInt = 4  #: attention (query) heads
    attention: AttentionKind = "mla"  #: kind of attention: multi-head latent or grouped-query
    mla: MLAConfig = MLAConfig()  #: widths of multi-head latent attention
    gqa: GQAConfig = GQAConfig()  #: widths of grouped-query attention
    dense_ffn: PositiveInt = 1024  #: hidden width of the dense feed-forward
    moe: MoEConfig = MoEConfig()  #: experts and their router
    vision: VisionConfig = VisionConfig()  #: tower and projector for images and video
    rope_theta: PositiveFloat = 50000.0  #: rotary base
    yarn: YarnConfig = YarnConfig()  #: context extension
    llama3_rope: Llama3RopeConfig = Llama3RopeConfig()  #: context extension
    norm_eps: NonNegativeFloat = 1e-6  #: epsilon of block and final RMSNorm (the latent norms always use 1e-6)
    vocab: PositiveInt = 4096  #: vocabulary size, at least the tokenizer's
    tied_head: bool = False  #: the head is the transposed embedding
    init_std: NonNegativeFloat = 0.02  #: standard deviation of the normal initializer
    kernels: Kernels = "auto"  #: auto is pallas on a TPU, else xla; interpret runs the pallas kernels in Python

    @property
    def attention_widths(self) -> MLAConfig | GQAConfig:
        """The group of the model's kind of attention, for the widths that both kinds have."""
        return getattr(self, self.attention)
