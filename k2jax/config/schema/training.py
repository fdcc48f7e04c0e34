"""A run of any stage: its loop, devices, checkpoints, reports and validation."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.ranges import (
    FloatFromOne,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
)
from k2jax.config.schema.optimizer import ComputeDtype

ExpertBackend = Literal["auto", "dense", "a2a", "ragged"]
RematPolicy = Literal["none", "selective", "full"]


@dataclasses.dataclass(frozen=True)
class ContrastConfig:
    """SigLIP's loss between images and what the assistant wrote of them, beside that of the tokens."""

    weight: NonNegativeFloat = 0.0  #: coefficient; 0 turns it off, as model.vision.contrast does
    captions: PositiveInt = 16  #: documents of a row that take part, the first ones


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training loop."""

    steps: PositiveInt = 600  #: optimizer steps
    batch_size: PositiveInt = 8  #: rows per optimizer step, over all micro-batches and processes
    micro_batches: PositiveInt = 1  #: gradient accumulation: the batch is cut into this many parts
    seed: int = 0  #: seeds initial weights and data order
    gradient_dtype: Literal["float32", "bfloat16"] = "float32"  #: dtype in which the gradients of micro-batches add up
    compute_dtype: ComputeDtype = "auto"  #: dtype of products, Muon's too; auto is bfloat16, on a CPU float32
    remat: RematPolicy = "none"  #: what the backward pass recomputes; selective: norms, SwiGLU, MLA up-projections
    keep: tuple[str, ...] = ()  #: activations kept though the policy recomputes them
    recompute: tuple[str, ...] = ()  #: activations recomputed though the policy keeps them
    store_fp8: tuple[str, ...] = ()  #: activations kept in FP8 (E4M3): expert_input and *_gate_up
    offload: tuple[str, ...] = ()  #: activations kept in the host's memory
    keep_across: tuple[str, ...] = ()  #: activations that a pipeline keeps from a chunk's forward to its backward tick
    profile_steps: tuple[int, ...] = ()  #: (first, last) steps to trace with xprof
    contrast: ContrastConfig = ContrastConfig()  #: of images and captions
    patience: NonNegativeInt = 0  #: validations without a lower held-out loss that end a run; 0 is no end
    spike_factor: PositiveFloat = 1.2  #: a loss above this times its running mean counts as a spike


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """The mesh: the product of the first five keys is the number of devices. ``data`` and ``expert`` take rows."""

    data: NonNegativeInt = 0  #: groups of devices that share only gradients; 0 takes all devices left
    expert: PositiveInt = 1  #: devices that share the experts of a layer; divides model.moe.experts
    stage: PositiveInt = 1  #: pipeline stages; the layers with experts (or all, without experts) are spread over them
    tensor: PositiveInt = 1  #: devices that share every layer's heads and hidden width; divides them
    context: PositiveInt = 1  #: devices that share the tokens of a row; divides data.sequence_length and heads
    virtual_stages: PositiveInt = 1  #: runs of layers per stage; more make the pipeline's bubble smaller
    executor: Literal["1f1b", "autodiff"] = "1f1b"  #: of a pipeline: interleaved 1F1B, or differentiated by JAX
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
    wandb: str | None = None  #: PROJECT or ENTITY/PROJECT of Weights & Biases that also gets scalars and configuration


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Validation and samples."""

    every: PositiveInt = 100  #: interval between validations; the last step is always validated [steps]
    rows: NonNegativeInt = 64  #: held-out rows per validation during training; 0 is all of them
    final_rows: NonNegativeInt = 0  #: held-out rows of the last validation; 0 is all; with train.patience as rows
    by_source: bool = False  #: rows of every source, and a loss of each, val_loss/NAME; else rows of all together
    sample_tokens: NonNegativeInt = 120  #: length of each text sample; 0 turns samples off [tokens]
    sample_temperature: NonNegativeFloat = 0.7  #: sampling temperature
    prompts: tuple[str, ...] = ()  #: prompts of the samples; by default the beginnings of three held-out documents
