"""Muon: momentum, orthogonalised matrix by matrix and scaled to the root mean square of an AdamW update.

The matrices of a weight follow from its ParamSpec: one projection, or one expert's gate, up or down projection. Weights
may be stacked over layers, experts, gate and up; the stacking never changes a result, it only decides which matrices
are computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
from typing import Any, NamedTuple, get_args

import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.config.schema import MomentumForm
from k2jax.params import ParamSpec, Specs, from_matrices, is_spec, to_matrices
from pallas_kernels.newton_schulz import Coefficients, newton_schulz_stacks


class MatrixStack(NamedTuple):
    """Matrices of one weight, which are orthogonalised together with others of their shape.

    Attributes:
        leaf_index: index of the weight's leaf in tree order.
        spec: spec that divides the weight into matrices.
        matrices: ``[*spec.stack, n, m]``.
    """

    leaf_index: int
    spec: ParamSpec
    matrices: Array


NewtonSchulz = Callable[[list[MatrixStack], Coefficients, Any], list[Array]]
"""From (stacks of matrices of one shape, coefficients, dtype of products) to the orthogonalised matrices."""


class MuonState(NamedTuple):
    """State of Muon.

    Attributes:
        momentum: float32 arrays in the structure of the parameters.
    """

    momentum: Any


def scale_by_muon(
    specs: Specs,
    *,
    coefficients: Coefficients,
    momentum: float = 0.95,
    momentum_form: MomentumForm = "heavy_ball",
    update_rms: float = 0.2,
    dtype: jax.typing.DTypeLike | None = None,
    split_heads: bool = False,
    newton_schulz: NewtonSchulz | None = None,
) -> optax.GradientTransformation:
    """Momentum and orthogonalisation (Kimi K2, algorithm 1, lines 3 to 6; Moonlight, arXiv:2502.16982, equation 4).

    ``M ← μ M + G; O ← NewtonSchulz(M) · update_rms · sqrt(max(n, m))`` for every matrix; decay and learning rate
    follow in the chain. All matrices of one shape, or of its transpose, are orthogonalised in one call.

    Args:
        specs: spec tree of the parameters. Leaves may be masked (``optax.MaskedNode``), as ``optax.partition`` does.
        coefficients: one (a, b, c) for each Newton-Schulz step.
        momentum: μ.
        momentum_form: ``heavy_ball`` orthogonalises M, ``nesterov`` orthogonalises G + μ M.
        update_rms: root mean square of the update of a full-rank matrix.
        dtype: dtype of the Newton-Schulz products; None depends on the platform.
        split_heads: whether every head and segment of a projection with segments is a matrix of its own.
        newton_schulz: iteration for weights that are sharded over devices; None computes them locally.

    Raises:
        ValueError: if ``momentum_form`` is unknown, or an unmasked leaf is not a matrix.
    """
    if momentum_form not in get_args(MomentumForm):
        raise ValueError(f"unknown momentum_form {momentum_form!r}; it must be one of {get_args(MomentumForm)}")

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        moments = jax.tree.map(lambda m, g: momentum * m + g, state.momentum, grads)
        nesterov = momentum_form == "nesterov"
        direction = jax.tree.map(lambda g, m: g + momentum * m, grads, moments) if nesterov else moments
        iterate = functools.partial(newton_schulz or _newton_schulz_local, coefficients=coefficients, dtype=dtype)
        return orthogonalize(specs, direction, iterate, update_rms, split_heads), MuonState(moments)

    return optax.GradientTransformation(init, update)


def orthogonalize(
    specs: Specs,
    tree: Any,
    iterate: Callable[[list[MatrixStack]], list[Array]],
    update_rms: float,
    split_heads: bool,
) -> Any:
    """Applies Newton-Schulz to every matrix of every unmasked leaf, and scales by ``update_rms * sqrt(max(n, m))``."""
    spec_list, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    leaves = treedef.flatten_up_to(tree)
    groups = defaultdict(list)  # sides of a matrix -> stacks of such matrices
    for leaf_index, (spec, leaf) in enumerate(zip(spec_list, leaves, strict=True)):
        if isinstance(leaf, optax.MaskedNode):
            continue
        for matrix in matrix_slices(spec, split_heads):
            matrices = to_matrices(matrix.spec, leaf[..., matrix.start : matrix.stop])
            groups[tuple(sorted(matrices.shape[-2:]))].append(MatrixStack(leaf_index, matrix.spec, matrices))
    slices = defaultdict(list)  # leaf index -> (spec, matrices) of its slices, in order
    for (_, larger), stacks in groups.items():
        scale = update_rms * math.sqrt(larger)  # the root mean square of an orthogonal matrix is 1 / sqrt(larger side)
        for stack, result in zip(stacks, iterate(stacks), strict=True):
            slices[stack.leaf_index].append((stack.spec, scale * result))
    return treedef.unflatten(_join(slices[i]) if i in slices else leaf for i, leaf in enumerate(leaves))


def _newton_schulz_local(stacks: list[MatrixStack], coefficients: Coefficients, dtype: Any) -> list[Array]:
    return newton_schulz_stacks([stack.matrices for stack in stacks], coefficients, dtype)


def _join(slices: list[tuple[ParamSpec, Array]]) -> Array:
    """Joins the slices of a leaf along the last axis."""
    arrays = [from_matrices(spec, matrices) for spec, matrices in slices]
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)


class MatrixSlice(NamedTuple):
    """Slice of a weight that is divided into matrices.

    Attributes:
        start: first column of the leaf's last axis.
        stop: one past the last column.
        spec: spec that divides the slice into matrices.
    """

    start: int
    stop: int
    spec: ParamSpec


def matrix_slices(spec: ParamSpec, split_heads: bool) -> Iterator[MatrixSlice]:
    """Yields the slices of a weight that are orthogonalised separately.

    There is one slice, or with ``split_heads`` one for each segment, in which the heads are a stack axis.

    Raises:
        ValueError: if the weight is not a matrix.
    """
    if not spec.inputs:
        raise ValueError(f"Muon updates matrices; {spec.hf} is a vector of role {spec.role}")
    if not (split_heads and spec.segments):
        yield MatrixSlice(0, spec.shape[-1], spec)
        return
    start = 0
    for _, width in spec.segments:
        segment = dataclasses.replace(spec, shape=(*spec.shape[:-1], width), outputs=spec.axes[-1:], segments=())
        yield MatrixSlice(start, start + width, segment)
        start += width
