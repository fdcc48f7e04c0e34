"""One experiment: its stage, and all groups of keys."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.schema.data import DataConfig
from k2jax.config.schema.model import ModelConfig
from k2jax.config.schema.optimizer import OptimizerConfig, RouterConfig
from k2jax.config.schema.reinforcement import RLConfig
from k2jax.config.schema.training import CheckpointConfig, EvalConfig, LogConfig, ParallelConfig, TrainConfig

Stage = Literal["pretrain", "sft", "rl"]


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
    init_from: str | None = None  #: checkpoint whose parameters start an empty workdir
    init_tower_from: str | None = None  #: checkpoint whose tower, without its projector, starts an empty workdir
