"""Muon: momentum, orthogonalised matrix by matrix, scaled to the root mean square of an AdamW update.

What one matrix is follows from its ParamSpec: one projection, or one expert's gate, up or down. How matrices are stored
(stacked over layers, experts, gate and up) never changes a result; it only decides what is computed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.params import ParamSpec, Specs, from_matrices, is_spec, to_matrices
from pallas_kernels.newton_schulz import Coefficients, newton_schulz_stacks


class Member(NamedTuple):
    """Matrices of one weight, to be orthogonalised together with others of their shape.

    Attributes:
        number: of the weight's leaf, in tree order.
        spec: what cuts it into matrices.
        matrices: ``[*spec.stack, n, m]``.
    """

    number: int
    spec: ParamSpec
    matrices: Array


NewtonSchulz = Callable[[list[Member], Coefficients, Any], list[Array]]


class MuonState(NamedTuple):
    """``momentum``: float32, the structure of the parameters."""

    momentum: Any


def scale_by_muon(
    specs: Specs,
    *,
    coefficients: Coefficients,
    momentum: float = 0.95,
    momentum_form: str = "heavy_ball",
    update_rms: float = 0.2,
    dtype: jax.typing.DTypeLike | None = None,
    split_heads: bool = False,
    newton_schulz: NewtonSchulz | None = None,
) -> optax.GradientTransformation:
    """Momentum and orthogonalisation (Kimi K2, algorithm 1, lines 3 to 6; Moonlight, arXiv:2502.16982, equation 4).

    ``M ← μ M + G; O ← NewtonSchulz(M) · update_rms · sqrt(max(n, m))`` for every matrix; decay and learning rate come
    after it in the chain. All matrices of one shape, or of its transpose, are orthogonalised in one call.

    Args:
        specs: spec tree of the parameters. Leaves may be masked (``optax.MaskedNode``), as ``optax.partition`` does.
        coefficients: one (a, b, c) per Newton-Schulz step.
        momentum: μ.
        momentum_form: ``heavy_ball`` orthogonalises M, ``nesterov`` orthogonalises G + μ M.
        update_rms: root mean square of the update of a full-rank matrix.
        dtype: of the Newton-Schulz products; None is by platform.
        split_heads: treat every head and segment of a projection with segments as a matrix of its own.
        newton_schulz: ``(members of one shape, coefficients, dtype) -> results`` where weights are spread over devices;
            None computes them here.

    Raises:
        ValueError: an unknown ``momentum_form``, or an unmasked leaf that is not a matrix.
    """
    if momentum_form not in ("heavy_ball", "nesterov"):
        raise ValueError(f"unknown momentum_form {momentum_form!r}; there are heavy_ball and nesterov")

    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        del params
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        moments = jax.tree.map(lambda m, g: momentum * m + g, state.momentum, grads)
        nesterov = momentum_form == "nesterov"
        direction = jax.tree.map(lambda g, m: g + momentum * m, grads, moments) if nesterov else moments
        iterate = functools.partial(newton_schulz or _here, coefficients=coefficients, dtype=dtype)
        return orthogonalize(specs, direction, iterate, update_rms, split_heads), MuonState(moments)

    return optax.GradientTransformation(init, update)


def orthogonalize(
    specs: Specs,
    tree: Any,
    iterate: Callable[[list[Member]], list[Array]],
    update_rms: float,
    split_heads: bool,
) -> Any:
    """Newton-Schulz on every matrix of every unmasked leaf, times ``update_rms * sqrt(max(n, m))``."""
    spec_list, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    leaves = treedef.flatten_up_to(tree)
    groups = defaultdict(list)  # sides of a matrix -> its members
    for number, (spec, leaf) in enumerate(zip(spec_list, leaves, strict=True)):
        if isinstance(leaf, optax.MaskedNode):
            continue
        for part in matrix_parts(spec, split_heads):
            matrices = to_matrices(part.spec, leaf[..., part.start : part.stop])
            groups[tuple(sorted(matrices.shape[-2:]))].append(Member(number, part.spec, matrices))
    pieces = defaultdict(list)  # leaf number -> its parts, in order
    for (_, larger), members in groups.items():
        scale = update_rms * math.sqrt(larger)  # the root mean square of an orthogonal matrix is 1 / sqrt(larger side)
        for member, result in zip(members, iterate(members), strict=True):
            pieces[member.number].append((member.spec, scale * result))
    return treedef.unflatten(_join(pieces[i]) if i in pieces else leaf for i, leaf in enumerate(leaves))


def _here(members: list[Member], coefficients: Coefficients, dtype: Any) -> list[Array]:
    return newton_schulz_stacks([member.matrices for member in members], coefficients, dtype)


def _join(pieces: list[tuple[ParamSpec, Array]]) -> Array:
    """A leaf from its parts along the last axis."""
    parts = [from_matrices(spec, matrices) for spec, matrices in pieces]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class Part(NamedTuple):
    """Columns ``start:stop`` of a leaf's last axis, and the spec that cuts them into matrices."""

    start: int
    stop: int
    spec: ParamSpec


def matrix_parts(spec: ParamSpec, split_heads: bool) -> Iterator[Part]:
    """The parts of a weight that are orthogonalised apart: all of it, or its segments with heads as a stack axis.

    Raises:
        ValueError: the weight is not a matrix.
    """
    if not spec.inputs:
        raise ValueError(f"Muon updates matrices; {spec.hf} is a vector of role {spec.role}")
    if not (split_heads and spec.segments):
        yield Part(0, spec.shape[-1], spec)
        return
    start = 0
    for _, width in spec.segments:
        part = dataclasses.replace(spec, shape=(*spec.shape[:-1], width), outputs=spec.axes[-1:], segments=())
        yield Part(start, start + width, part)
        start += width
