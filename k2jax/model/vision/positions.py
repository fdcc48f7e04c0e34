"""Positions of patches: the learned grid resampled to each image, the fixed table of frames, 2-D rotary angles.

Everything is computed from a patch's own row, column and frame, and the size of its image.
"""

from __future__ import annotations

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

CUBIC = -0.75
"""Parameter of the cubic convolution kernel (Keys 1981) in torch's bicubic interpolation."""
PATCHES_AT_ONCE = 1024
"""Patches whose weights of the whole grid are held together: 16 MiB for a grid of 64 x 64 in float32."""


def axis_weights(index: Array, size: Array, side: int) -> Array:
    """Weights of the grid's rows (or columns) in bicubic interpolation, without aligned corners.

    Taps beyond the border count for the border.

    Args:
        index: int32 ``[...]``, row of the patch in its image.
        size: int32 ``[...]``, rows of its image.
        side: rows of the grid.

    Returns:
        float32 ``[..., side]``.
    """
    source = (index.astype(jnp.float32) + 0.5) * side / size.astype(jnp.float32) - 0.5
    floor = jnp.floor(source)
    weights = jnp.zeros((*index.shape, side), jnp.float32)
    for offset in range(-1, 3):
        distance = jnp.abs(source - floor - offset)
        near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
        far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
        tap = jnp.clip(floor.astype(jnp.int32) + offset, 0, side - 1)
        weights += jnp.where(distance <= 1, near, far)[..., None] * (tap[..., None] == jnp.arange(side))
    return weights


def grid_positions(grid: Array, y: Array, x: Array, height: Array, width: Array) -> Array:
    """The learned grid at every patch, as a matrix product with the weights of all its positions.

    The product costs a hundredth of the published tower. Its gradient is another product, where a gather of 16
    positions would have a scatter-add.

    Args:
        grid: ``[Y, X, D]``.
        y: int32 ``[R, P]``, row of the patch in its image; as all others.
        x: column of the patch.
        height: rows of the image.
        width: columns of the image.

    Returns:
        ``[R, P, D]`` in the dtype of the grid.
    """
    side_y, side_x, channels = grid.shape

    @jax.checkpoint
    def resample(patch: Array) -> Array:
        y_T, x_T, height_T, width_T = patch
        weights_TYX = axis_weights(y_T, height_T, side_y)[:, :, None] * axis_weights(x_T, width_T, side_x)[:, None]
        return weights_TYX.reshape(-1, side_y * side_x).astype(grid.dtype) @ grid.reshape(-1, channels)

    patches = jnp.stack([y, x, height, width]).reshape(4, -1)
    total = patches.shape[1]
    if total <= PATCHES_AT_ONCE:
        return resample(patches).reshape(*y.shape, channels)
    padded = jnp.pad(patches, ((0, 0), (0, -total % PATCHES_AT_ONCE)), constant_values=1)
    chunks = padded.reshape(4, -1, PATCHES_AT_ONCE).swapaxes(0, 1)
    return lax.map(resample, chunks).reshape(-1, channels)[:total].reshape(*y.shape, channels)


def frame_table(frames: int, width: int) -> np.ndarray:
    """Sines and cosines of the frames of a chunk, float32 ``[frames + 1, width]``.

    Row 0 is zero, for chunks of one frame; row f + 1 is frame f of a longer chunk.
    """
    inverse = 10000.0 ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    angles = np.arange(frames, dtype=np.float64)[:, None] * inverse
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    return np.concatenate([np.zeros((1, width)), table]).astype(np.float32)


def rotary_angles(y: Array, x: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosine and sine of each channel pair: columns and rows take turns, with the same frequencies.

    Args:
        y: int32 ``[R, P]``, row of the patch in its image.
        x: its column.
        head_dim: channels of a head, a multiple of 4.
        theta: rotary base.

    Returns:
        Two float32 ``[R, P, head_dim / 2]``.
    """
    spatial = head_dim // 2
    inverse = jnp.asarray(theta ** (-np.arange(0, spatial, 2, dtype=np.float64) / spatial), jnp.float32)
    by_axis = [axis[..., None].astype(jnp.float32) * inverse for axis in (x, y)]
    angles = jnp.stack(by_axis, axis=-1).reshape(*y.shape, spatial)
    return jnp.cos(angles), jnp.sin(angles)
