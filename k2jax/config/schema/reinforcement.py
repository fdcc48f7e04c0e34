"""Reinforcement learning: its groups of keys, and the keys of the loop itself."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses

from k2jax.config.ranges import NonNegativeInt, PositiveFloat, PositiveInt, PositiveShare
from k2jax.config.schema.objectives import AdvantageConfig, DistillConfig, PackingConfig, PolicyLossConfig
from k2jax.config.schema.rollouts import (
    CriticConfig,
    EnginesConfig,
    ParlConfig,
    RoleConfig,
    RolloutConfig,
    ScoringConfig,
    TaskConfig,
    ToggleConfig,
)


def _default_tasks() -> dict[str, TaskConfig]:
    """Generated on every machine, without a download."""
    return {"characters": TaskConfig()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLConfig:
    """Reinforcement learning; read where ``stage`` is rl. ``train.steps`` counts iterations."""

    tasks: Mapping[str, TaskConfig] = dataclasses.field(default_factory=_default_tasks)  #: classes of tasks by name
    roles: Mapping[str, RoleConfig] = dataclasses.field(default_factory=dict)  #: frozen checkpoints by their names
    rollout: RolloutConfig = RolloutConfig()  #: generation
    engines: EnginesConfig = EnginesConfig()  #: of the policy
    advantage: AdvantageConfig = AdvantageConfig()  #: rewards to advantages
    loss: PolicyLossConfig = PolicyLossConfig()  #: objective
    packing: PackingConfig = PackingConfig()  #: rows
    distill: DistillConfig = DistillConfig()  #: teachers
    max_staleness: NonNegativeInt | None = None  #: versions that a group may be behind, of sampler workers; None is any
    updates: PositiveInt = 1  #: optimizer steps of an iteration; its groups are divided among them
    scoring: ScoringConfig = ScoringConfig()  #: verifiers
    images: str = ""  #: folder of unpacked root file systems from which tasks choose their sandbox's; empty refuses all
    hosts: tuple[str, ...] = ()  #: that tasks may choose for their sandboxes: HOST, https://HOST, with or without :PORT
    critic: CriticConfig = CriticConfig()  #: judge of comparisons
    skip_flat_groups: bool = False  #: leave groups whose rewards are all equal out of the batch and its denominators
    toggle: ToggleConfig = ToggleConfig()  #: budgets of tokens
    parl: ParlConfig = ParlConfig()  #: rewards of agents with sub-agents
    correct_reward: float = 1.0  #: reward from which on a response counts as right
    eval_prompts: NonNegativeInt = 128  #: held-out tasks of an evaluation; 0 turns it off
    eval_samples: PositiveInt = 8  #: responses to each of them that are sampled (pass@k, Avg@k, pass^k)
    eval_temperature: PositiveFloat = 1.0  #: of the responses of an evaluation that are sampled
    eval_top_p: PositiveShare = 1.0  #: of these: the most likely tokens whose probabilities reach this sum; 1 keeps all
    eval_top_k: NonNegativeInt = 0  #: of these: number of the most likely tokens; 0 keeps all
    keep_trajectories: PositiveInt = 10  #: iterations whose trajectories stay in the workdir
    record_masks: bool = False  #: trajectories keep what the loss clipped and IcePop zeroed; a forward pass an update
