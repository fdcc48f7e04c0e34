"""One experiment: its stage, and all groups of keys."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Literal

from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt
from k2jax.config.schema.data import DataConfig
from k2jax.config.schema.model import ModelConfig
from k2jax.config.schema.optimizer import OptimizerConfig, RouterConfig
from k2jax.config.schema.reinforcement import RLConfig
from k2jax.config.schema.training import CheckpointConfig, EvalConfig, LogConfig, ParallelConfig, TrainConfig

Stage = Literal["pretrain", "sft", "rl"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A part of a run of stage pretrain with a mixture, sizes and a learning rate of its own; ``k2jax.config.phases``.

    It lasts until the next phase begins, and the last one until ``train.steps``.
    """

    begin: NonNegativeInt = 0  #: steps of the run before it; 0 of the first phase alone [steps]
    mixture: tuple[str, ...] = ()  #: its sources, each "NAME=WEIGHT", by rows; empty is all, by their own weights
    overrides: tuple[str, ...] = ()  #: keys with another value in it, each "KEY=VALUE", see docs/phases.md
    rate: Literal["schedule", "constant", "linear", "cosine"] = "schedule"  #: shape, from the rate before it
    rate_to: NonNegativeFloat | None = None  #: learning rate at its end, of linear and cosine


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    phases: Mapping[str, PhaseConfig] = dataclasses.field(default_factory=dict)  #: parts of a run of pretraining
    init_from: str | None = None  #: checkpoint whose parameters start an empty workdir
    init_tower_from: str | None = None  #: checkpoint, or SigLIP, whose tower alone starts an empty workdir
