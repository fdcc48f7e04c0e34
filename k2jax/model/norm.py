"""RMSNorm."""

from jax import Array, lax
import jax.numpy as jnp

LATENT_EPS = 1e-6  # the norms of MLA's query and key-value latents use this whatever the model's epsilon


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Computes ``x / sqrt(mean(x^2) + eps) * weight`` over the last axis, with float32 statistics, in the dtype of x.

    Args:
        x: ``[..., D]``.
        weight: ``[D]``.
        eps: added to the mean square.
    """
    x32 = x.astype(jnp.float32)
    inverse = lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * inverse).astype(x.dtype) * weight.astype(x.dtype)
