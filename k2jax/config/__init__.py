"""Typed experiment configuration: declared in ``schema``, edited as a ConfigDict, read back as frozen dataclasses.

In reading order: ``schema`` (every key, once), ``fields`` and ``ranges`` (what a key accepts), ``build`` (dataclasses
to a ConfigDict and back), ``checks`` (rules about several keys), ``phases`` (parts of a run) and ``phase_checks``,
``presets``, ``experiments`` (config files), ``identity`` (what ties a checkpoint to its config), ``replace``,
``reference`` (the documentation), ``activations`` (what a backward pass may keep).
"""

from k2jax.config.build import defaults, from_json, phase, resolve, role, source, task, to_json
from k2jax.config.experiments import config_beside, load_experiment
from k2jax.config.presets import model_preset
from k2jax.config.replace import replace_keys
from k2jax.config.schema import (
    AdvantageConfig,
    Config,
    DataConfig,
    GQAConfig,
    IcePopConfig,
    Llama3RopeConfig,
    MCLAConfig,
    MLAConfig,
    ModelConfig,
    MoEConfig,
    OptimizerConfig,
    PackingConfig,
    PhaseConfig,
    PolicyLossConfig,
    RoleConfig,
    TaskConfig,
    TrainConfig,
    YarnConfig,
)

__all__ = [
    "AdvantageConfig",
    "Config",
    "DataConfig",
    "GQAConfig",
    "IcePopConfig",
    "Llama3RopeConfig",
    "MCLAConfig",
    "MLAConfig",
    "MoEConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PackingConfig",
    "PhaseConfig",
    "PolicyLossConfig",
    "RoleConfig",
    "TaskConfig",
    "TrainConfig",
    "YarnConfig",
    "config_beside",
    "defaults",
    "from_json",
    "load_experiment",
    "model_preset",
    "phase",
    "replace_keys",
    "resolve",
    "role",
    "source",
    "task",
    "to_json",
]
