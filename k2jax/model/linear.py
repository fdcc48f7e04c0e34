"""Matrix products of token activations."""

from jax import Array


def linear(x: Array, weight: Array) -> Array:
    """Multiplies ``x [..., D]`` by ``weight [D, F]`` as one two-dimensional product.

    XLA:CPU takes twice as long for the weight's gradient when it contracts batch and sequence as two axes.
    """
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], weight.shape[-1])


def to_heads(x: Array, weight: Array) -> Array:
    """Multiplies ``x [B, S, R]`` by ``weight [R, H, E]``; returns ``[B, H, S, E]``."""
    rank, heads, width = weight.shape
    y_BSHE = linear(x, weight.reshape(rank, -1)).reshape(*x.shape[:2], heads, width)
    return y_BSHE.swapaxes(1, 2)


def from_heads(x: Array, weight: Array) -> Array:
    """Multiplies ``x [B, H, S, E]`` by ``weight [H, E, D]``; returns ``[B, S, D]``."""
    batch, heads, sequence, width = x.shape
    return linear(x.swapaxes(1, 2).reshape(batch, sequence, heads * width), weight.reshape(-1, weight.shape[-1]))
