"""Every configuration key, once: frozen dataclasses whose field comments become the key reference and ``--help``.

A field is declared as ``name: type = default  #: meaning [unit]``. The ConfigDict that experiments edit, the type
checks, the command-line overrides and the generated reference are all derived from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class YarnConfig:
    """YaRN context extension (arXiv:2309.00071), as DeepSeek-V3, Kimi K2 and transformers configure it."""

    factor: float = 1.0  #: context extension factor; 1 turns YaRN off
    beta_fast: float = 32.0  #: rotations above which a frequency is left alone
    beta_slow: float = 1.0  #: rotations below which a frequency is fully interpolated
    mscale: float = 1.0  #: numerator of the rotary attention factor
    mscale_all_dim: float = 1.0  #: its denominator, 0 is none; mla: also scales the softmax by mscale(factor, this)^2
    original_positions: int = 4096  #: context length before extension [tokens]


@dataclasses.dataclass(frozen=True)
class Llama3RopeConfig:
    """Context extension of Llama 3.1 and later (``rope_type: llama3``): slow frequencies are divided by the factor."""

    factor: float = 1.0  #: context extension factor; 1 turns it off
    low_freq_factor: float = 1.0  #: rotations over the original context below which a frequency is divided
    high_freq_factor: float = 4.0  #: rotations above which a frequency is left alone; blended in between
    original_positions: int = 8192  #: context length before extension [tokens]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A text decoder: the Kimi K2 (DeepSeek-V3) family, MLA attention and sigmoid-routed experts, or a dense one.

    Dense decoders (Llama, SmolLM2, Qwen2, Qwen3) have grouped-query attention and ``dense_layers`` equal to ``layers``.
    Widths of the other kind of attention, and keys of experts where no layer has any, are not read.
    """

    layers: int = 4  #: decoder layers in all
    dense_layers: int = 1  #: leading layers with a dense feed-forward instead of experts
    d_model: int = 256  #: width of the residual stream
    heads: int = 4  #: attention (query) heads
    attention: str = "mla"  #: mla | gqa (grouped-query attention)
    q_lora_rank: int | None = 96  #: mla: width of the query latent; None projects queries directly
    kv_lora_rank: int = 64  #: mla: width of the key-value latent
    qk_nope_dim: int = 64  #: mla: per-head query/key width without rotary positions
    qk_rope_dim: int = 32  #: mla: per-head query/key width with rotary positions; even
    v_dim: int = 64  #: mla: per-head value width
    kv_heads: int = 2  #: gqa: key-value heads, a divisor of heads; each serves a run of consecutive query heads
    head_dim: int = 64  #: gqa: per-head width of queries, keys and values; even
    qkv_bias: bool = False  #: gqa: bias on the query, key and value projections (Qwen2)
    qk_norm: bool = False  #: gqa: RMSNorm over head_dim of queries and keys before the rotation (Qwen3)
    dense_ffn: int = 1024  #: hidden width of the dense feed-forward
    expert_ffn: int = 128  #: hidden width of each expert
    experts: int = 32  #: routed experts per layer
    active_experts: int = 4  #: routed experts per token
    shared_experts: int = 1  #: experts that see every token
    expert_groups: int = 1  #: groups for group-limited routing; 1 turns it off
    active_groups: int = 1  #: groups a token may route to
    routed_scaling: float = 2.827  #: factor on the routed experts' output
    normalize_gates: bool = True  #: gates of the chosen experts sum to 1 before scaling
    rope_theta: float = 50000.0  #: rotary base
    yarn: YarnConfig = YarnConfig()  #: context extension
    llama3_rope: Llama3RopeConfig = Llama3RopeConfig()  #: context extension
    norm_eps: float = 1e-6  #: epsilon of block and final RMSNorm (the latent norms always use 1e-6)
    vocab: int = 4096  #: vocabulary size, at least the tokenizer's
    tied_head: bool = False  #: the head is the transposed embedding
    init_std: float = 0.02  #: standard deviation of the normal initializer
    capacity_factor: float = 1.06  #: share of expert work done as one batched matmul; the overflow goes block by block
    kernels: str = "auto"  #: of layers: auto (pallas on a TPU, else xla) | xla | pallas | interpret (pallas, in Python)


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over steps: linear warm-up, constant, decay to a floor, optional annealing to a last rate."""

    kind: str = "wsd"  #: wsd | cosine (no constant part) | constant (after the warm-up)
    warmup_steps: int | None = None  #: linear warm-up from 0; None is 50 or a tenth of training, the less [steps]
    decay_steps: int = 0  #: length of the decay; 0 is 40 % of training (wsd) or all after warm-up (cosine) [steps]
    decay_shape: str = "linear"  #: linear | cosine
    floor: float = 0.1  #: rate after the decay, as a fraction of the peak
    anneal_steps: int = 0  #: final linear segment from the floor [steps]
    anneal_to: float = 0.0  #: rate at the end of annealing, as a fraction of the peak


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """MuonClip (Kimi K2, section 2.1, algorithm 1), plain Muon, or AdamW."""

    name: str = "muonclip"  #: muonclip | muon | adamw
    learning_rate: float = 2e-4  #: peak rate, shared by the Muon and AdamW groups
    schedule: ScheduleConfig = ScheduleConfig()  #: rate over steps
    weight_decay: float = 0.1  #: decoupled decay, on matrices only
    momentum: float = 0.95  #: Muon momentum
    momentum_form: str = "heavy_ball"  #: heavy_ball (M is orthogonalised) | nesterov (G + mu M is)
    update_rms: float = 0.2  #: Muon update scale: update_rms * sqrt(max(n, m))
    newton_schulz: str = "muon"  #: coefficient preset: muon | polar_express
    newton_schulz_steps: int = 5  #: Newton-Schulz iterations
    newton_schulz_dtype: str = "auto"  #: auto (bfloat16 on accelerators, float32 on CPU) | float32 | bfloat16
    split_heads: bool = False  #: orthogonalise MLA up-projections per head, nope, rope and value parts apart
    muon_router: bool = False  #: send the router matrix to Muon instead of AdamW
    adam_b1: float = 0.9  #: AdamW first-moment decay
    adam_b2: float = 0.95  #: AdamW second-moment decay
    adam_eps: float = 1e-8  #: AdamW epsilon
    grad_clip: float = 1.0  #: global-norm gradient clipping; 0 turns it off
    qk_clip_tau: float = 100.0  #: QK-Clip threshold on the maximum attention logit
    qk_clip_alpha: float = 0.5  #: share of the rescaling that goes to the queries


@dataclasses.dataclass(frozen=True)
class RouterConfig:
    """Expert load balancing: auxiliary-loss-free bias (DeepSeek-V3, section 2.1.2) and the optional sequence loss."""

    bias_rate: float = 1e-3  #: step of the selection bias: b += rate * sign(mean count - count)
    bias_rate_final: float = 1e-3  #: the rate at the last step, reached linearly
    balance_loss: float = 0.0  #: coefficient of the sequence-level balance loss; 0 turns it off


@dataclasses.dataclass(frozen=True)
class SourceConfig:
    """One corpus of the mixture."""

    kind: str = "stdlib"  #: stdlib | text (files) | jsonl | parquet | huggingface
    path: str = ""  #: folder, file or glob; for huggingface the data set's name
    field: str = "text"  #: the text column of jsonl, parquet and huggingface records
    subset: str = ""  #: huggingface configuration name
    split: str = "train"  #: huggingface split
    weight: float = 1.0  #: relative share of the mixture, by rows
    max_epochs: float = 0.0  #: passes over the source before the others take its share; 0 is no limit
    max_documents: int = 0  #: read at most this many documents; 0 is all


def _default_sources() -> dict[str, SourceConfig]:
    """Real text on every machine, without a download."""
    return {"stdlib": SourceConfig()}


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Text to tokens."""

    kind: str = "bpe"  #: bpe (byte-level, trained once on the corpus) | file (a tokenizer.json) | bytes
    path: str = ""  #: the tokenizer.json, for kind=file
    vocab: int = 4096  #: vocabulary to train, special tokens included, for kind=bpe
    train_bytes: int = 16_000_000  #: text read to train on, for kind=bpe [bytes]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where tokens come from and how they are packed."""

    sources: Mapping[str, SourceConfig] = dataclasses.field(default_factory=_default_sources)  #: corpora by name
    tokenizer: TokenizerConfig = TokenizerConfig()  #: text to tokens
    sequence_length: int = 512  #: tokens per row
    held_out: float = 0.05  #: fraction of documents kept for validation, chosen by a hash of their content
    on_corrupt: str = "skip"  #: skip (reported and counted) | fail
    cache_dir: str = ""  #: tokenised shards and trained tokenizers; empty is $K2JAX_CACHE or ~/.cache/k2jax


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int = 600  #: optimizer steps
    batch_size: int = 8  #: rows per optimizer step, over all micro-batches and processes
    micro_batches: int = 1  #: gradient accumulation: the batch is cut into this many parts
    seed: int = 0  #: seeds initial weights and data order
    gradient_dtype: str = "float32"  #: in which micro-batches' gradients add up: float32 | bfloat16
    compute_dtype: str = "auto"  #: auto (bfloat16 on accelerators, float32 on CPU) | float32 | bfloat16
    remat: str = "none"  #: recomputed in the backward pass: none | selective (norms, SwiGLU, MLA up-projections) | full
    keep: tuple[str, ...] = ()  #: activations kept though the policy recomputes them
    recompute: tuple[str, ...] = ()  #: activations recomputed though the policy keeps them
    store_fp8: tuple[str, ...] = ()  #: activations kept in FP8 (E4M3): expert_input | *_gate_up
    offload: tuple[str, ...] = ()  #: activations kept in the host's memory
    profile_steps: tuple[int, ...] = ()  #: (first, last) steps to trace with xprof
    spike_factor: float = 1.2  #: a loss above this times its running mean counts as a spike


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """The mesh: the product of the first five keys is the number of devices. ``data`` and ``expert`` take rows."""

    data: int = 0  #: groups of devices that share nothing but gradients; 0 takes the devices that are left
    expert: int = 1  #: devices that share the experts of a layer; divides model.experts
    stage: int = 1  #: pipeline stages; the layers with experts (or all, without experts) are spread over them
    tensor: int = 1  #: devices that share every layer's heads and hidden width; divides them
    context: int = 1  #: devices that share the tokens of a row; divides data.sequence_length and heads
    virtual_stages: int = 1  #: runs of layers that each pipeline stage holds; more make the pipeline's bubble smaller
    schedule: str = "1f1b"  #: of pipeline stages: 1f1b (interleaved) | gpipe | scan (differentiated by JAX)
    expert_backend: str = "auto"  #: how tokens travel to experts: auto | dense | ring | a2a | ragged | dma
    expert_chunks: int = 1  #: parts of a micro-batch that are exchanged and computed one after the other
    expert_slots: float = 1.0  #: rows to one other device, over its tokens; those beyond are dropped and counted
    expert_copies: float = 4.0  #: room for copies of tokens on a device, over their mean; more stop the run (kernels)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When training state is saved."""

    every: int = 200  #: interval between checkpoints; the last step is always saved [steps]
    keep: int = 2  #: checkpoints kept


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """What a run reports."""

    every: int = 1  #: interval between lines of metrics.jsonl; a line holds its own step, not a mean [steps]
    plots_every: int = 200  #: interval between redrawn plots and reports; they are always drawn at the end [steps]
    tensorboard: bool = True  #: write TensorBoard events under the workdir


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Validation and samples."""

    every: int = 100  #: interval between validations; the last step is always validated [steps]
    rows: int = 64  #: held-out rows per validation during training; 0 is all of them
    final_rows: int = 0  #: held-out rows of the last validation; 0 is all of them
    sample_tokens: int = 120  #: length of each text sample; 0 turns samples off [tokens]
    sample_temperature: float = 0.7  #: sampling temperature
    prompts: tuple[str, ...] = ("import os\n", "class Queue:\n    def __init__(self", "def ")  #: prompts of the samples


@dataclasses.dataclass(frozen=True)
class Config:
    """One experiment."""

    stage: str = "pretrain"  #: pretrain | sft | rl | eval
    model: ModelConfig = ModelConfig()  #: architecture
    optimizer: OptimizerConfig = OptimizerConfig()  #: update rule
    router: RouterConfig = RouterConfig()  #: expert load balancing
    data: DataConfig = DataConfig()  #: corpora, tokenizer, packing
    train: TrainConfig = TrainConfig()  #: loop
    parallel: ParallelConfig = ParallelConfig()  #: devices
    checkpoint: CheckpointConfig = CheckpointConfig()  #: saving
    log: LogConfig = LogConfig()  #: reporting
    eval: EvalConfig = EvalConfig()  #: validation
    init_from: str | None = None  #: checkpoint whose parameters start an empty workdir
