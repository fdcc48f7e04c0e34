"""Typed experiment configuration: declared in ``schema``, edited as a ConfigDict, read back as frozen dataclasses."""

from k2jax.config.build import defaults, from_json, resolve, source, to_json
from k2jax.config.presets import model_preset
from k2jax.config.replace import replace_keys
from k2jax.config.schema import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    GQAConfig,
    Llama3RopeConfig,
    LogConfig,
    MLAConfig,
    ModelConfig,
    MoEConfig,
    OptimizerConfig,
    RouterConfig,
    ScheduleConfig,
    SourceConfig,
    TokenizerConfig,
    TrainConfig,
    YarnConfig,
)

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "EvalConfig",
    "GQAConfig",
    "Llama3RopeConfig",
    "LogConfig",
    "MLAConfig",
    "MoEConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RouterConfig",
    "ScheduleConfig",
    "SourceConfig",
    "TokenizerConfig",
    "TrainConfig",
    "YarnConfig",
    "defaults",
    "from_json",
    "model_preset",
    "replace_keys",
    "resolve",
    "source",
    "to_json",
]
