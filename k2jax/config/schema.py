"""Every configuration key, once: frozen dataclasses whose field comments become the key reference and ``--help``.

A field is declared as ``name: type = default  #: meaning [unit]``. The type names the accepted words (``Literal``) or
the range (``Annotated``), see ``fields``. The ConfigDict that experiments edit, the checks of single values, the
command-line overrides and the generated reference are all derived from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Literal

from k2jax.config.ranges import (
    FloatFromOne,
    IntFromTwo,
    NonNegativeFloat,
    NonNegativeInt,
    Percentile,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Share,
    ShareBelowOne,
)

AdvantageBaseline = Literal["mean", "leave_one_out", "none"]
AdvantageScale = Literal["none", "std"]
Aggregation = Literal["token", "sequence"]
RatioLevel = Literal["turn", "sequence", "token"]
AttentionKind = Literal["mla", "gqa"]
ChatKind = Literal["auto", "plain", "compact"]
ComputeDtype = Literal["auto", "float32", "bfloat16"]
DistillInto = Literal["advantage", "component"]
ExpertBackend = Literal["auto", "dense", "a2a", "ragged", "dma"]
Kernels = Literal["auto", "xla", "pallas", "interpret"]
MomentumForm = Literal["heavy_ball", "nesterov"]
OldLogprobs = Literal["rollout", "recompute"]
OnCorrupt = Literal["skip", "fail"]
OptimizerName = Literal["muonclip", "muon", "adamw"]
PackingLayout = Literal["paths", "tree"]
SharedTokens = Literal["unique", "paths"]
PolicyLossName = Literal["k2", "k2.5", "gspo", "reinforce"]
RematPolicy = Literal["none", "selective", "full"]
ScheduleKind = Literal["wsd", "cosine", "constant"]
RoutingKind = Literal["own", "record", "replay"]
SandboxKind = Literal["bubblewrap", "nsjail", "unsafe"]
SourceKind = Literal["stdlib", "text", "jsonl", "parquet", "huggingface", "chat", "trajectories"]
Stage = Literal["pretrain", "sft", "rl", "eval"]
TokenizerKind = Literal["bpe", "file", "bytes"]
CONVERSATIONS = ("chat", "trajectories")
"""Kinds of sources whose records are conversations."""


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


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
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
    projector_eps: NonNegativeFloat = 1e-5  #: epsilon of the projector's norm (the tower's always use 1e-5)


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over steps: linear warm-up, constant, decay to a floor, optional annealing to a last rate."""

    kind: ScheduleKind = "wsd"  #: shape over steps; cosine has no constant part, constant only the warm-up
    warmup_steps: NonNegativeInt | None = None  #: linear warm-up; None is 50 or a tenth of training, the less [steps]
    decay_steps: NonNegativeInt = 0  #: decay; 0 is 40 % of training (wsd) or all after warm-up (cosine) [steps]
    decay_shape: Literal["linear", "cosine"] = "linear"  #: shape of the decay of wsd
    floor: NonNegativeFloat = 0.1  #: rate after the decay, as a fraction of the peak
    anneal_steps: NonNegativeInt = 0  #: final linear segment from the floor [steps]
    anneal_to: NonNegativeFloat = 0.0  #: rate at the end of annealing, as a fraction of the peak


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """MuonClip (Kimi K2, section 2.1, algorithm 1), plain Muon, or AdamW."""

    name: OptimizerName = "muonclip"  #: update rule
    learning_rate: NonNegativeFloat = 2e-4  #: peak rate, shared by the Muon and AdamW groups
    schedule: ScheduleConfig = ScheduleConfig()  #: rate over steps
    weight_decay: NonNegativeFloat = 0.1  #: decoupled decay, on matrices only
    momentum: ShareBelowOne = 0.95  #: Muon momentum
    momentum_form: MomentumForm = "heavy_ball"  #: what Muon orthogonalises: the momentum M, or G + mu M
    update_rms: float = 0.2  #: Muon update scale: update_rms * sqrt(max(n, m))
    newton_schulz: Literal["muon", "polar_express"] = "muon"  #: coefficient preset
    newton_schulz_steps: PositiveInt = 5  #: Newton-Schulz iterations
    newton_schulz_dtype: ComputeDtype = "auto"  #: dtype of products; auto is bfloat16 on accelerators, float32 on CPU
    split_heads: bool = False  #: orthogonalise MLA up-projections per head, nope, rope and value parts apart
    muon_router: bool = False  #: send the router matrix to Muon instead of AdamW
    adam_b1: ShareBelowOne = 0.9  #: AdamW first-moment decay
    adam_b2: ShareBelowOne = 0.95  #: AdamW second-moment decay
    adam_eps: NonNegativeFloat = 1e-8  #: AdamW epsilon
    grad_clip: NonNegativeFloat = 1.0  #: global-norm gradient clipping; 0 turns it off
    qk_clip_tau: PositiveFloat = 100.0  #: QK-Clip threshold on the maximum attention logit
    qk_clip_alpha: Share = 0.5  #: share of the rescaling that goes to the queries


@dataclasses.dataclass(frozen=True)
class RouterConfig:
    """Expert load balancing: auxiliary-loss-free bias (DeepSeek-V3, section 2.1.2) and the optional sequence loss."""

    bias_rate: NonNegativeFloat = 1e-3  #: step of the selection bias: b += rate * sign(mean count - count)
    bias_rate_final: NonNegativeFloat = 1e-3  #: the rate at the last step, reached linearly
    balance_loss: NonNegativeFloat = 0.0  #: coefficient of the sequence-level balance loss; 0 turns it off


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One corpus of the mixture."""

    kind: SourceKind = "stdlib"  #: format; text is a set of files, chat JSON lines of messages, for sft
    path: str = ""  #: folder, file or glob; for huggingface the data set's name
    field: str = "text"  #: the text column of jsonl, parquet and huggingface records
    subset: str = ""  #: huggingface configuration name
    split: str = "train"  #: huggingface split
    weight: PositiveFloat = 1.0  #: relative share of the mixture, by rows
    max_epochs: NonNegativeFloat = 0.0  #: passes over the source before the others take its share; 0 is no limit
    max_documents: NonNegativeInt = 0  #: read at most this many documents; 0 is all
    filters: tuple[str, ...] = ()  #: names of filters that a trajectory must pass; empty is all


def _default_sources() -> dict[str, SourceConfig]:
    """Real text on every machine, without a download."""
    return {"stdlib": SourceConfig()}


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Text to tokens."""

    kind: TokenizerKind = "bpe"  #: bpe is byte-level and trained once on the corpus; file is a tokenizer.json
    path: str = ""  #: for kind=file: a tokenizer.json, or the checkpoint that has it
    vocab: PositiveInt = 4096  #: vocabulary to train, special tokens included, for kind=bpe
    train_bytes: PositiveInt = 16_000_000  #: text read to train on, for kind=bpe [bytes]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where tokens come from and how they are packed."""

    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=_default_sources)  #: corpora by name
    tokenizer: TokenizerConfig = TokenizerConfig()  #: text to tokens
    sequence_length: IntFromTwo = 512  #: tokens per row
    chat_format: ChatKind = "auto"  #: of conversations; auto is the tokenizer's, plain and compact need no chat tokens
    held_out: ShareBelowOne = 0.05  #: share of documents kept for validation, by a hash of their content
    on_corrupt: OnCorrupt = "skip"  #: what to do about a corrupt record; skip reports and counts it
    cache_dir: str = ""  #: tokenised shards and trained tokenizers; empty is $K2JAX_CACHE or ~/.cache/k2jax


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: PositiveInt = 600  #: optimizer steps
    batch_size: PositiveInt = 8  #: rows per optimizer step, over all micro-batches and processes
    micro_batches: PositiveInt = 1  #: gradient accumulation: the batch is cut into this many parts
    seed: int = 0  #: seeds initial weights and data order
    gradient_dtype: Literal["float32", "bfloat16"] = "float32"  #: dtype in which the gradients of micro-batches add up
    compute_dtype: ComputeDtype = "auto"  #: dtype of products; auto is bfloat16 on accelerators, float32 on CPU
    remat: RematPolicy = "none"  #: what the backward pass recomputes; selective: norms, SwiGLU, MLA up-projections
    keep: tuple[str, ...] = ()  #: activations kept though the policy recomputes them
    recompute: tuple[str, ...] = ()  #: activations recomputed though the policy keeps them
    store_fp8: tuple[str, ...] = ()  #: activations kept in FP8 (E4M3): expert_input and *_gate_up
    offload: tuple[str, ...] = ()  #: activations kept in the host's memory
    profile_steps: tuple[int, ...] = ()  #: (first, last) steps to trace with xprof
    patience: NonNegativeInt = 0  #: validations without a lower held-out loss that end a run; 0 is no end
    spike_factor: PositiveFloat = 1.2  #: a loss above this times its running mean counts as a spike


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """The mesh: the product of the first five keys is the number of devices. ``data`` and ``expert`` take rows."""

    data: NonNegativeInt = 0  #: groups of devices that share only gradients; 0 takes all devices left
    expert: PositiveInt = 1  #: devices that share the experts of a layer; divides model.moe.experts
    stage: PositiveInt = 1  #: pipeline stages; the layers with experts (or all, without experts) are spread over them
    tensor: PositiveInt = 1  #: devices that share every layer's heads and hidden width; divides them
    context: PositiveInt = 1  #: devices that share the tokens of a row; divides data.sequence_length and heads
    virtual_stages: PositiveInt = 1  #: runs of layers per stage; more make the pipeline's bubble smaller
    executor: Literal["1f1b", "gpipe", "autodiff"] = "1f1b"  #: interleaved 1F1B, GPipe, or differentiated by JAX
    expert_backend: ExpertBackend = "auto"  #: how tokens travel to experts; auto is ragged on a TPU, else a2a
    expert_chunks: PositiveInt = 1  #: parts of a micro-batch that are exchanged and computed one after the other
    expert_slots: PositiveShare = 1.0  #: rows to another device, over its tokens; those beyond are dropped and counted
    expert_copies: FloatFromOne = 4.0  #: room for copies of tokens on a device, over their mean; more stop the run


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When training state is saved."""

    every: PositiveInt = 200  #: interval between checkpoints; the last step is always saved [steps]
    keep: PositiveInt = 2  #: checkpoints kept


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What a run reports."""

    every: PositiveInt = 1  #: interval between lines of metrics.jsonl; a line holds its own step, not a mean [steps]
    plots_every: PositiveInt = 200  #: interval between redrawn plots and reports; also drawn at the end [steps]
    tensorboard: bool = True  #: write TensorBoard events under the workdir


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Validation and samples."""

    every: PositiveInt = 100  #: interval between validations; the last step is always validated [steps]
    rows: NonNegativeInt = 64  #: held-out rows per validation during training; 0 is all of them
    final_rows: NonNegativeInt = 0  #: held-out rows of the last validation; 0 is all; with train.patience as rows
    sample_tokens: NonNegativeInt = 120  #: length of each text sample; 0 turns samples off [tokens]
    sample_temperature: NonNegativeFloat = 0.7  #: sampling temperature
    prompts: tuple[str, ...] = ()  #: prompts of the samples; by default the beginnings of three held-out documents


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """One class of tasks of the mixture: where prompts come from, and how they are sampled."""

    dataset: str = "characters"  #: name of a registered dataset
    options: tuple[str, ...] = ()  #: options of the dataset, each "name=value"
    weight: PositiveFloat = 1.0  #: relative share of the prompts
    max_tokens: PositiveInt = 256  #: most tokens of a response; a longer one is cut there [tokens]
    overlong_penalty: NonNegativeFloat = 0.0  #: subtracted from the reward of a response that was cut
    temperature: PositiveFloat = 1.0  #: sampling temperature of the first iterations
    temperature_final: PositiveFloat = 1.0  #: temperature from the end of the decay on
    temperature_decay: Share = 0.0  #: share of the run over which the temperature falls linearly; 0 is no decay
    reward: Literal["verifier", "critic"] = "verifier"  #: the dataset's verifier, or comparisons by rl.critic's judge
    environment: str = ""  #: name of the environment; empty is the dataset's choice, or with tools "tools"
    tools: tuple[str, ...] = ()  #: toolsets, each "NAME option=value ..."; empty is the dataset's choice
    scaffold: str = ""  #: "NAME option=value ..."; empty is the dataset's choice
    verifier: str = ""  #: name of the verifier; empty is the dataset's choice
    components: tuple[str, ...] = ()  #: prompt components in order, each "NAME option=value ..."
    steps: NonNegativeInt = 0  #: most calls of the model in an episode; 0 is the dataset's choice
    episode_tokens: NonNegativeInt = 0  #: most sampled tokens of an episode; 0 is the dataset's choice [tokens]


def _default_tasks() -> dict[str, TaskConfig]:
    """Generated on every machine, without a download."""
    return {"characters": TaskConfig()}


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """Generation of the responses of one iteration, on the devices of the training."""

    prompts: PositiveInt = 64  #: prompts of an iteration
    samples: IntFromTwo = 8  #: responses to each prompt (K)
    token_cap: NonNegativeInt = 0  #: tokens that a response may grow by in one iteration; 0 is no cap [tokens]
    slots: PositiveInt = 64  #: sequences that run at a time, over all devices
    page_size: PositiveInt = 16  #: tokens in a page of the cache
    max_length: IntFromTwo = 512  #: longest sequence, prompt and response together [tokens]
    data: PositiveInt = 1  #: groups of the engine's devices, each with all experts
    expert: PositiveInt = 1  #: devices of the engine that share the experts
    routing: RoutingKind = "own"  #: who chooses experts in training; record keeps the engine's choice, replay uses it
    sandbox: SandboxKind = "bubblewrap"  #: backend for the tools of an agent
    deterministic: bool = True  #: the engine waits for every coroutine that may still submit a request
    offload_state: bool = False  #: training state rests in host memory meanwhile, and the engine's while training
    publish: bool = False  #: keep the current weights in shared memory too, for engines in other processes


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
    """From the rewards of a group of responses to advantages."""

    baseline: AdvantageBaseline = "mean"  #: mean of the group, of the others in it, or none (rejection sampling)
    scale: AdvantageScale = "none"  #: std divides by the standard deviation of the group


@dataclasses.dataclass(frozen=True)
class IcePopConfig:
    """IcePop: the policy gradient of a token is weighed by how far the trainer is from the engine."""

    on: bool = False  #: weigh by k = exp(log pi_old - log mu), 0 where k is outside the band; needs old recompute
    low: PositiveFloat = 0.5  #: lowest k inside the band
    high: PositiveFloat = 5.0  #: highest k inside the band
    denominator: Literal["all", "kept"] = "all"  #: mean over all sampled tokens, or over those inside (k2.5, reinforce)


@dataclasses.dataclass(frozen=True)
class MCLAConfig:
    """Monte-Carlo averaging of log-probabilities (KAT-Coder-V2, equation 11)."""

    passes: PositiveInt = 1  #: differently packed forward passes whose mean is log pi_old; above 1 needs old recompute
    current: bool = False  #: average the current policy's log-probabilities over as many passes too


@dataclasses.dataclass(frozen=True)
class PolicyLossConfig:
    """The policy objective: level of the ratio, trust region, advantage and aggregation follow from its name."""

    name: PolicyLossName = "k2.5"  #: K1.5/K2's squared objective, K2.5's token-clipped one, GSPO, or plain REINFORCE
    tau: PositiveFloat = 0.01  #: strength of the pull to the old policy (k2, k2.5)
    ratio_low: PositiveFloat = 0.5  #: lowest ratio inside the band (k2.5); 1 - this for gspo is epsilon_low
    ratio_high: PositiveFloat = 2.0  #: highest ratio inside the band (k2.5, gspo)
    length_normalized: bool = False  #: divide a response's sum of log-ratios by its length (k2)
    aggregation: Aggregation = "token"  #: gspo: mean over tokens or over responses
    level: RatioLevel = "turn"  #: gspo: what has a ratio of its own, every turn, the whole response, or every token
    old: OldLogprobs = "rollout"  #: log pi_old is what the engine recorded, or a forward pass before the first update
    icepop: IcePopConfig = IcePopConfig()  #: tokens on which the trainer and the engine differ
    mcla: MCLAConfig = MCLAConfig()  #: averages over forward passes
    ptx: NonNegativeFloat = 0.0  #: coefficient of the cross-entropy on config.data (PTX); 0 turns it off
    ptx_rows: NonNegativeInt = 0  #: rows of config.data in every update
    per_domain: bool = False  #: classes of tasks count equally, however many tokens each has (k2.5, reinforce)


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """On-policy distillation: the best teacher of each class of tasks judges every token that the policy samples."""

    weight: NonNegativeFloat = 0.0  #: coefficient of log pi_teacher - log pi (lambda); 0 turns distillation off
    teachers: tuple[str, ...] = ()  #: each "NAME=CHECKPOINT", with a checkpoint as of init_from
    table: str | None = None  #: JSON file {"CLASS": {"TEACHER": accuracy}}; None measures it on held-out tasks
    into: DistillInto = "advantage"  #: added to every token's advantage, or a term of the loss with a denominator
    rewards: bool = True  #: keep the advantages of rewards; without them a run distils alone


@dataclasses.dataclass(frozen=True)
class PackingConfig:
    """Rows of the training of reinforcement learning."""

    layout: PackingLayout = "paths"  #: every path of a trajectory by itself, or what paths share once (Tree Training)
    shared_tokens: SharedTokens = "unique"  #: a sampled token that paths share counts once, or once in each of them


@dataclasses.dataclass(frozen=True)
class ScoringConfig:
    """Verifiers in processes that can be killed."""

    workers: PositiveInt = 2  #: processes
    timeout: PositiveFloat = 10.0  #: wall time of one verdict, from its start [s]
    retries: NonNegativeInt = 2  #: tries after an error of the infrastructure; then the sample is masked
    sandbox: SandboxKind = "bubblewrap"  #: backend for verifiers that run code


@dataclasses.dataclass(frozen=True)
class ToggleConfig:
    """Toggle (Kimi K2.5, section 4.4): phases in which a right response counts only within a budget of tokens."""

    period: NonNegativeInt = 0  #: iterations of a phase, the first of which has budgets; 0 turns Toggle off
    accuracy: Share = 0.75  #: mean reward of a group from which on the budget of its prompt holds
    percentile: Percentile = 50.0  #: of the lengths of right responses of the initial policy: a prompt's budget
    samples: PositiveInt = 8  #: responses of the initial policy to every prompt, from which budgets come


@dataclasses.dataclass(frozen=True)
class CriticConfig:
    """Rewards from pairwise comparisons by rubrics, and the policy's training as a judge (Kimi K2, section 3.2.2)."""

    judge: Literal["policy", "endpoint"] = "policy"  #: who compares two answers: the policy itself, or a server
    format: Literal["chat", "compact"] = "chat"  #: of questions to the judge; compact is for models of characters
    rubrics: tuple[str, ...] = ()  #: YAML files of rubrics; empty is the packaged core and prescriptive ones
    max_tokens: PositiveInt = 256  #: most tokens of a verdict; one that is cut is no verdict [tokens]
    share: Share = 0.0  #: closed loop: prompts to the policy as judge, over prompts of an iteration; 0 turns it off
    temperature: PositiveFloat = 1.0  #: of the closed loop's sampled verdicts; verdicts that give rewards are greedy
    url: str = ""  #: of the endpoint, OpenAI-compatible, without /v1
    model: str = ""  #: the name by which the endpoint knows its model
    tokenizer: str = ""  #: checkpoint of the endpoint's tokenizer; empty is the policy's
    api_key_variable: str = ""  #: name of the environment variable that holds the endpoint's key; empty is no key
    concurrency: PositiveInt = 16  #: requests to the endpoint at a time
    timeout: PositiveFloat = 120.0  #: longest silence of the endpoint [s]


@dataclasses.dataclass(frozen=True)
class RLConfig:
    """Reinforcement learning; read where ``stage`` is rl. ``train.steps`` counts iterations."""

    tasks: Mapping[str, TaskConfig] = dataclasses.field(default_factory=_default_tasks)  #: classes of tasks by name
    rollout: RolloutConfig = RolloutConfig()  #: generation
    advantage: AdvantageConfig = AdvantageConfig()  #: rewards to advantages
    loss: PolicyLossConfig = PolicyLossConfig()  #: objective
    packing: PackingConfig = PackingConfig()  #: rows
    distill: DistillConfig = DistillConfig()  #: teachers
    updates: PositiveInt = 1  #: optimizer steps of an iteration; its groups are divided among them
    scoring: ScoringConfig = ScoringConfig()  #: verifiers
    critic: CriticConfig = CriticConfig()  #: judge of comparisons
    skip_flat_groups: bool = False  #: leave groups whose rewards are all equal out of the batch and its denominators
    toggle: ToggleConfig = ToggleConfig()  #: budgets of tokens
    correct_reward: float = 1.0  #: reward from which on a response counts as right
    eval_prompts: NonNegativeInt = 128  #: held-out tasks of an evaluation; 0 turns it off
    eval_samples: PositiveInt = 8  #: responses to each of them at temperature 1 (pass@k, Avg@k, pass^k)
    keep_trajectories: PositiveInt = 10  #: iterations whose trajectories stay in the workdir
    record_masks: bool = False  #: trajectories keep what the loss clipped and IcePop zeroed; a forward pass an update


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment."""

    stage: Stage = "pretrain"  #: what the run does
    model: ModelConfig = ModelConfig()  #: architecture
    optimizer: OptimizerConfig = OptimizerConfig()  #: update rule
    router: RouterConfig = RouterConfig()  #: expert load balancing
    data: DataConfig = DataConfig()  #: corpora, tokenizer, packing
    train: TrainConfig = TrainConfig()  #: loop
    parallel: ParallelConfig = ParallelConfig()  #: devices
    checkpoint: CheckpointConfig = CheckpointConfig()  #: saving
    log: LogConfig = LogConfig()  #: reporting
    eval: EvalConfig = EvalConfig()  #: validation
    rl: RLConfig = RLConfig()  #: reinforcement learning
    init_from: str | None = None  #: checkpoint whose parameters start an empty workdir
