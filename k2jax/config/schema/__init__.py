"""Every configuration key, once: frozen dataclasses whose field comments become the key reference and ``--help``.

A field is declared as ``name: type = default  #: meaning [unit]``. The type names the accepted words (``Literal``) or
the range (``Annotated``), see ``fields``. The ConfigDict that experiments edit, the checks of single values, the
command-line overrides and the generated reference are all derived from these classes. A file holds the groups
of one part of an experiment; ``experiment`` puts them together.
"""

from k2jax.config.schema.data import (
    CONVERSATIONS,
    IMAGE_SOURCES,
    TRAJECTORIES,
    DataConfig,
    ImagesConfig,
    OnCorrupt,
    SourceConfig,
    StepsConfig,
    TokenizerConfig,
)
from k2jax.config.schema.experiment import Config, Stage
from k2jax.config.schema.model import (
    AttentionKind,
    GQAConfig,
    Kernels,
    Llama3RopeConfig,
    MLAConfig,
    ModelConfig,
    MoEConfig,
    VisionConfig,
    YarnConfig,
)
from k2jax.config.schema.objectives import (
    BANDS,
    AdvantageConfig,
    DistillConfig,
    IcePopConfig,
    MCLAConfig,
    PackingConfig,
    PackingLayout,
    PolicyLossConfig,
    RatioLevel,
    SharedTokens,
)
from k2jax.config.schema.optimizer import (
    ComputeDtype,
    OptimizerConfig,
    OptimizerName,
    RouterConfig,
    ScheduleConfig,
)
from k2jax.config.schema.reinforcement import RLConfig
from k2jax.config.schema.rollouts import (
    CriticConfig,
    EnginesConfig,
    ParlConfig,
    RoleConfig,
    RolloutConfig,
    SandboxKind,
    ScoringConfig,
    TaskConfig,
    ToggleConfig,
)
from k2jax.config.schema.training import (
    CheckpointConfig,
    ContrastConfig,
    EvalConfig,
    ExpertBackend,
    LogConfig,
    ParallelConfig,
    RematPolicy,
    TrainConfig,
)

__all__ = [
    "BANDS",
    "CONVERSATIONS",
    "IMAGE_SOURCES",
    "TRAJECTORIES",
    "AdvantageConfig",
    "AttentionKind",
    "CheckpointConfig",
    "ComputeDtype",
    "Config",
    "ContrastConfig",
    "CriticConfig",
    "DataConfig",
    "DistillConfig",
    "EnginesConfig",
    "EvalConfig",
    "ExpertBackend",
    "GQAConfig",
    "IcePopConfig",
    "ImagesConfig",
    "Kernels",
    "Llama3RopeConfig",
    "LogConfig",
    "MCLAConfig",
    "MLAConfig",
    "MoEConfig",
    "ModelConfig",
    "OnCorrupt",
    "OptimizerConfig",
    "OptimizerName",
    "PackingConfig",
    "PackingLayout",
    "ParallelConfig",
    "ParlConfig",
    "PolicyLossConfig",
    "RLConfig",
    "RatioLevel",
    "RematPolicy",
    "RoleConfig",
    "RolloutConfig",
    "RouterConfig",
    "SandboxKind",
    "ScheduleConfig",
    "ScoringConfig",
    "SharedTokens",
    "SourceConfig",
    "Stage",
    "StepsConfig",
    "TaskConfig",
    "ToggleConfig",
    "TokenizerConfig",
    "TrainConfig",
    "VisionConfig",
    "YarnConfig",
]
