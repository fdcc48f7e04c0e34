"""Quantiles of values per token from sums that add up over micro-batches and devices.

A quantile is no sum. The shares of values above fixed bounds are, and with ten bounds to a factor of ten they tell a
quantile to within a quarter of its size.
"""

from __future__ import annotations

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.losses.rows import Rows

BOUNDS = np.logspace(-8, 2, 101)
"""What values are compared with, ascending."""


def sums_above(rows: Rows, values_BS: Array, weights_BS: Array) -> Array:
    """The weight ``[N]`` float32 of the values above each of the ``BOUNDS``, as a metric of a loss."""
    bounds_N = jnp.asarray(BOUNDS, values_BS.dtype)
    return jax.vmap(lambda bound: rows.sum(jnp.where(values_BS > bound, weights_BS, 0)))(bounds_N)


def quantile(above_N: np.ndarray, share: float, largest: float) -> float:
    """The value that a share of all values does not exceed, between two bounds by their logarithms.

    Args:
        above_N: the share of values above each of the ``BOUNDS``.
        share: 0.99 for the 99th percentile.
        largest: of all values.

    Returns:
        The quantile: at most ``largest``, and 0 where it lies below all bounds.
    """
    rest = 1 - share
    number = int((np.asarray(above_N) > rest).sum())  # of bounds below the quantile
    if number == 0:
        return 0.0
    if number == len(BOUNDS):
        return largest
    low, high = np.log(BOUNDS[number - 1 : number + 1])
    way = (above_N[number - 1] - rest) / (above_N[number - 1] - above_N[number])
    return min(largest, float(np.exp(low + way * (high - low))))
