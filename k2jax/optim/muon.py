"""Muon: momentum, orthogonalised matrix by matrix and scaled to the root mean square of an AdamW update.

The matrices of a weight follow from its ParamSpec: one projection, or one expert's gate, up or down projection. Weights
may be stacked over layers, experts, gate and up; the stacking never changes a result, it only decides which matrices
are computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import optax

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
UPDATE_RMS = 0.2
"""Root mean square of the update of a full-rank matrix, as of AdamW's (Moonlight, section 2.2)."""


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
    dtype: jax.typing.DTypeLike | None = None,
    newton_schulz: NewtonSchulz | None = None,
) -> optax.GradientTransformation:
    """Momentum and orthogonalisation (Kimi K2, algorithm 1, lines 3 to 6; Moonlight, arXiv:2502.16982, equation 4).

    ``M ← μ M + G; O ← NewtonSchulz(M) · UPDATE_RMS · sqrt(max(n, m))`` for every matrix; decay and learning rate
    follow in the chain. All matrices of one shape, or of its transpose, are orthogonalised in one call.

    Args:
        specs: spec tree of the parameters. Leaves may be masked (``optax.MaskedNode``), as ``optax.partition`` does.
        coefficients: one (a, b, c) for each Newton-Schulz step.
        momentum: μ.
        dtype: dtype of the Newton-Schulz products; None depends on the platform.
        newton_schulz: iteration for weights that are sharded over devices; None computes them locally.

    Raises:
        ValueError: an unmasked leaf is not a matrix.
    """

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        moments = jax.tree.map(lambda m, g: momentum * m + g, state.momentum, grads)
        iterate = functools.partial(newton_schulz or _newton_schulz_local, coefficients=coefficients, dtype=dtype)
        return orthogonalize(specs, moments, iterate), MuonState(moments)

    return optax.GradientTransformation(init, update)


def orthogonalize(specs: Specs, tree: Any, iterate: Callable[[list[MatrixStack]], list[Array]]) -> Any:
    """Applies Newton-Schulz to every matrix of every unmasked leaf, and scales by ``UPDATE_RMS * sqrt(max(n, m))``.

    Raises:
        ValueError: an unmasked leaf is not a matrix.
    """
    spec_list, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    leaves = treedef.flatten_up_to(tree)
    groups = defaultdict(list)  # sides of a matrix -> stacks of such matrices
    for leaf_index, (spec, leaf) in enumerate(zip(spec_list, leaves, strict=True)):
        if isinstance(leaf, optax.MaskedNode):
            continue
        if not spec.inputs:
            raise ValueError(f"Muon updates matrices; {spec.hf} is a vector of role {spec.role}")
        matrices = to_matrices(spec, leaf)
        groups[tuple(sorted(matrices.shape[-2:]))].append(MatrixStack(leaf_index, spec, matrices))
    updated = {}
    for (_, larger), stacks in groups.items():
        scale = UPDATE_RMS * math.sqrt(larger)  # the root mean square of an orthogonal matrix is 1 / sqrt(larger side)
        for stack, result in zip(stacks, iterate(stacks), strict=True):
            updated[stack.leaf_index] = from_matrices(stack.spec, scale * result)
    return treedef.unflatten(updated.get(i, leaf) for i, leaf in enumerate(leaves))


def _newton_schulz_local(stacks: list[MatrixStack], coefficients: Coefficients, dtype: Any) -> list[Array]:
    return newton_schulz_stacks([stack.matrices for stack in stacks], coefficients, dtype)
