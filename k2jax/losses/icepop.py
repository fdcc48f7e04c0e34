"""IcePop: the policy gradient leaves out tokens on which the trainer and the engine disagree.

With several experts, kernels or precisions the engine samples from a policy mu that is not quite the trainer's. Each
token's policy gradient is weighed by k = pi_old / mu, and by 0 outside a band (Ring-1T, arXiv:2510.18855;
KAT-Coder-V2, section 3.3.1).
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array, lax
import jax.numpy as jnp

from k2jax.losses.targets import PolicyTargets


class IcePop(NamedTuple):
    """The band of k. The mean is over all sampled tokens, zeroed ones too.

    Attributes:
        low: lowest k that is kept.
        high: highest k that is kept.
    """

    low: float
    high: float

    def kept(self, targets: PolicyTargets) -> Array:
        """Bool ``[B, S]``, where k lies in the band, bounds included; true outside sampled tokens, whose k is 1."""
        log_k_BS = _log_k(targets)
        return (log_k_BS >= jnp.log(self.low)) & (log_k_BS <= jnp.log(self.high))

    def factor(self, targets: PolicyTargets) -> Array:
        """Float32 ``[B, S]`` without a gradient: k in the band, 0 outside."""
        kept_BS = self.kept(targets)
        return lax.stop_gradient(jnp.where(kept_BS, jnp.exp(jnp.where(kept_BS, _log_k(targets), 0.0)), 0.0))


def _log_k(targets: PolicyTargets) -> Array:
    return jnp.where(targets.mask > 0, targets.old_logprob - targets.behavior_logprob, 0.0)
