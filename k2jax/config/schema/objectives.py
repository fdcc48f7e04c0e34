"""Reinforcement learning from the rewards on: advantages, objective, distillation, and rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

AdvantageBaseline = Literal["mean", "leave_one_out", "none"]
AdvantageScale = Literal["none", "std"]
Aggregation = Literal["token", "sequence"]
DistillInto = Literal["advantage", "component"]
OldLogprobs = Literal["rollout", "recompute"]
PackingLayout = Literal["paths", "tree"]
PolicyLossName = Literal["k2", "k2.5", "kat", "gspo", "ppo", "reinforce"]
RatioLevel = Literal["turn", "sequence", "token"]
SharedTokens = Literal["unique", "paths"]
BANDS: dict[PolicyLossName, tuple[float, float]] = {
    "k2.5": (0.5, 2.0),  # the report names none
    "kat": (1 - 3e-4, 1 + 4e-4),  # as GSPO's, whose objective it has
    "gspo": (1 - 3e-4, 1 + 4e-4),  # arXiv:2507.18071, section 5.1
    "ppo": (0.8, 1.2),  # arXiv:1707.06347, section 6.1
}
"""Lowest and highest ratio of the objectives that bound it, as their reports have them."""
_LEVELS: dict[PolicyLossName, RatioLevel] = {"k2": "sequence", "gspo": "sequence", "kat": "turn"}


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


@dataclasses.dataclass(frozen=True)
class MCLAConfig:
    """Monte-Carlo averaging of log-probabilities (KAT-Coder-V2, equation 11)."""

    passes: PositiveInt = 1  #: differently packed forward passes whose mean is log pi_old; above 1 needs old recompute


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyLossConfig:
    """The policy objective: level of the ratio, trust region, advantage and aggregation follow from its name."""

    name: PolicyLossName = "k2.5"  #: of Kimi K2, K2.5, KAT-Coder-V2 (GSPO of turns), GSPO, PPO, or plain REINFORCE
    tau: PositiveFloat = 0.01  #: strength of the pull to the old policy (k2, k2.5)
    ratio_low: PositiveFloat | None = None  #: lowest ratio inside the band, 1 - epsilon_low; None is the report's
    ratio_high: PositiveFloat | None = None  #: highest one; None: k2.5 2.0, kat and gspo 1.0004, ppo 1.2
    aggregation: Aggregation = "sequence"  #: kat, gspo: mean over responses, or over tokens
    old: OldLogprobs = "rollout"  #: log pi_old is what the engine recorded, or a forward pass before the first update
    icepop: IcePopConfig = IcePopConfig()  #: tokens on which the trainer and the engine differ
    mcla: MCLAConfig = MCLAConfig()  #: averages over forward passes
    ptx: NonNegativeFloat = 0.0  #: coefficient of the cross-entropy on config.data (PTX); 0 turns it off
    ptx_rows: NonNegativeInt = 0  #: rows of config.data in every update
    per_domain: bool = False  #: classes of tasks count equally, however many tokens each has (k2.5, reinforce)

    @property
    def band(self) -> tuple[float, float]:
        """Lowest and highest ratio inside the trust region; 0 and infinity for an objective without one."""
        low, high = BANDS.get(self.name, (0.0, math.inf))
        return self.ratio_low or low, self.ratio_high or high

    @property
    def level(self) -> RatioLevel:
        """What has a ratio of its own."""
        return _LEVELS.get(self.name, "token")


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
