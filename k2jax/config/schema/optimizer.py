"""Update rule: the optimizer, its learning rate over steps, and the balance of experts."""

from __future__ import annotations

import dataclasses
from typing import Literal

from k2jax.config.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Share, ShareBelowOne

ComputeDtype = Literal["auto", "float32", "bfloat16"]
OptimizerName = Literal["muonclip", "muon", "adamw"]
ScheduleKind = Literal["wsd", "cosine", "constant"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over steps: linear warm-up, constant, decay to a floor, optional annealing to a last rate."""

    kind: ScheduleKind = "wsd"  #: shape over steps; cosine has no constant part, constant only the warm-up
    warmup_steps: NonNegativeInt | None = None  #: linear warm-up; None is 50 or a tenth of training, the less [steps]
    decay_steps: NonNegativeInt = 0  #: decay; 0 is 40 % of training (wsd) or all after warm-up (cosine) [steps]
    decay_shape: Literal["linear", "cosine"] = "linear"  #: shape of the decay of wsd
    floor: NonNegativeFloat = 0.1  #: rate after the decay, as a fraction of the peak
    anneal_steps: NonNegativeInt = 0  #: final linear segment from the floor [steps]
    anneal_to: NonNegativeFloat = 0.0  #: rate at the end of annealing, as a fraction of the peak


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """MuonClip (Kimi K2, section 2.1, algorithm 1), plain Muon, or AdamW."""

    name: OptimizerName = "muonclip"  #: update rule
    learning_rate: NonNegativeFloat = 2e-4  #: peak rate, shared by the Muon and AdamW groups
    schedule: ScheduleConfig = ScheduleConfig()  #: rate over steps
    weight_decay: NonNegativeFloat = 0.1  #: decoupled decay, on matrices only
    momentum: ShareBelowOne = 0.95  #: Muon momentum
    newton_schulz: Literal["muon", "polar_express"] = "muon"  #: coefficient preset
    newton_schulz_steps: PositiveInt = 5  #: Newton-Schulz iterations
    adam_eps: NonNegativeFloat = 1e-8  #: AdamW epsilon
    grad_clip: NonNegativeFloat = 1.0  #: global-norm gradient clipping; 0 turns it off
    qk_clip_tau: PositiveFloat = 100.0  #: QK-Clip threshold on the maximum attention logit
    qk_clip_alpha: Share = 0.5  #: share of the rescaling that goes to the queries
    frozen: tuple[Literal["text", "tower", "projector"], ...] = ()  #: parts of a model with vision that do not learn
    tower_rate: NonNegativeFloat = 1.0  #: learning rate of the tower, over that of the decoder
    projector_rate: NonNegativeFloat = 1.0  #: learning rate of the projector, over that of the decoder


@dataclasses.dataclass(frozen=True)
class RouterConfig:
    """Expert load balancing: auxiliary-loss-free bias (DeepSeek-V3, section 2.1.2) and the optional sequence loss."""

    bias_rate: NonNegativeFloat = 1e-3  #: step of the selection bias: b += rate * sign(mean count - count)
    bias_rate_final: NonNegativeFloat = 1e-3  #: the rate at the last step, reached linearly
    balance_loss: NonNegativeFloat = 0.0  #: coefficient of the sequence-level balance loss; 0 turns it off
