"""MuonClip and its parts (Kimi K2, section 2.1, algorithm 1), as optax transformations built from a config.

In reading order: ``optimizer`` (all of it), ``groups`` (which rule a weight has), ``muon``, ``qk_clip``, ``schedule``,
``balance`` (router biases), ``flops``.
"""

from k2jax.optim.balance import balance_router_bias
from k2jax.optim.flops import newton_schulz_flops, newton_schulz_share
from k2jax.optim.groups import GroupRow, group_of, group_table
from k2jax.optim.muon import MatrixStack, NewtonSchulz, scale_by_muon
from k2jax.optim.optimizer import build_optimizer, learning_rate
from k2jax.optim.qk_clip import clips, qk_clip, qk_clip_gamma
from k2jax.optim.schedule import build_schedule

__all__ = [
    "GroupRow",
    "MatrixStack",
    "NewtonSchulz",
    "balance_router_bias",
    "build_optimizer",
    "build_schedule",
    "clips",
    "group_of",
    "group_table",
    "learning_rate",
    "newton_schulz_flops",
    "newton_schulz_share",
    "qk_clip",
    "qk_clip_gamma",
    "scale_by_muon",
]
