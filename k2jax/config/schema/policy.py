"""Reinforcement learning from the rewards on: advantages, objective, distillation, and rows."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

AdvantageBaseline = Literal["mean", "leave_one_out", "none"]
AdvantageScale = Literal["none", "std"]
Aggregation = Literal["token", "sequence"]
DistillInto = Literal["advantage", "component"]
OldLogprobs = Literal["rollout", "recompute"]
PackingLayout = Literal["paths", "tree"]
PolicyLossName = Literal["k2", "k2.5", "gspo", "reinforce"]
RatioLevel = Literal["turn", "sequence", "token"]
SharedTokens = Literal["unique", "paths"]


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
