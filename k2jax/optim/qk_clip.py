"""QK-Clip: after the update, rescales the queries and keys of heads whose attention logits exceeded a threshold.

The segments of a projection, never its name, decide what is scaled. A head that stayed below the threshold keeps its
update bit for bit.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
import jax.numpy as jnp
import numpy as np
import optax

from k2jax.config.schema import OptimizerConfig
from k2jax.params import TEXT, VISION, ParamSpec, Specs, by_group, from_groups, is_spec

PARTS = {TEXT: "text", VISION: "tower"}
"""The part of the model whose heads a group of layers has, as ``optim.groups`` names it."""


def qk_clip_gamma(max_logit: Array, tau: float) -> Array:
    """Per-head factor: ``tau / S`` where ``S > tau``, else exactly 1 (Kimi K2, section 2.1).

    S ≤ 0 and −inf (no visible logit) give 1. +inf, NaN and any S for which ``tau / S`` underflows give NaN: a factor of
    0 would set the head's weights to zero, so the run has to stop instead.

    Args:
        max_logit: float32 of any shape, the step's maximum attention logit, scaled and masked.
        tau: threshold, above 0.

    Returns:
        float32 of the shape of ``max_logit``, in (0, 1] or NaN.
    """
    s = jnp.asarray(max_logit, jnp.float32)
    exceeds = s > tau
    gamma = jnp.where(exceeds, tau / jnp.where(exceeds, s, 1.0), 1.0)
    limits = jnp.finfo(jnp.float32)
    underflows = s > min(tau / float(limits.tiny), float(limits.max))
    return jnp.where(jnp.isnan(s) | (s == jnp.inf) | underflows, jnp.nan, gamma)


def clips(group: str, config: OptimizerConfig) -> bool:
    """Whether QK-Clip rescales heads of a group of layers: one that does not learn stays as it is."""
    return config.name == "muonclip" and PARTS[group] not in config.frozen


def clip_groups(specs: Specs, config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """QK-Clip of every group of layers that learns, each by its own maxima.

    ``update`` needs the parameters and ``max_logit``, by group what ``qk_clip`` does. A tower without one of
    ``signals`` (see ``optim.signals``) stays as it is. In the tower every head has its own keys: queries and their
    biases are scaled by γ^alpha, keys by γ^(1 − alpha).
    """
    exponents = {"q": config.qk_clip_alpha, "k": 1.0 - config.qk_clip_alpha, "v": 0.0}
    options = {TEXT: {}, VISION: {"heads": "vision_heads", "exponents": exponents}}
    chosen = {
        group: qk_clip(tree, tau=config.qk_clip_tau, alpha=config.qk_clip_alpha, **options[group])
        for group, tree in by_group(specs).items()
        if clips(group, config)
    }

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        max_logit: dict[str, Array] | None = None,
        signals: dict[str, Array] | None = None,
        **extra: Any,
    ):
        del extra
        if params is None or max_logit is None:
            raise ValueError("QK-Clip needs the parameters and the step's max_logit, by group of layers")
        updates, params = by_group(updates), by_group(params)
        for group, clip in chosen.items():
            logits = max_logit[group]
            if group == VISION and signals is not None:
                logits = jnp.where(signals[PARTS[group]], logits, -jnp.inf)
            updates[group], _ = clip.update(updates[group], state, params[group], max_logit=logits)
        return from_groups(updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def qk_clip(
    specs: Specs,
    *,
    tau: float = 100.0,
    alpha: float = 0.5,
    heads: str = "heads",
    exponents: dict[str, float] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """QK-Clip as the last transformation of a chain (Kimi K2, algorithm 1, lines 8 to 16).

    A head's factor γ scales its columns of W + update: ``q_nope`` by γ^alpha, ``k_nope`` by γ^(1 − alpha), ``q_rope``
    by γ; ``v`` and the shared rope key do not change. In grouped-query attention several heads share a key: ``q`` and
    its bias are scaled by γ, and ``k`` does not change. A non-finite maximum (+inf, NaN) makes the update of the head's
    projections NaN: check that updates are finite before writing weights.

    ``update`` needs the float32 (master) parameters and ``max_logit``, ``[L, H]`` over all layers of the model in
    order: the maximum over the step's micro-batches and data ranks, never over layers or heads.

    Args:
        specs: spec tree of the parameters; projections and biases with ``segments`` are scaled along their axes
            ``layers`` and ``heads``.
        tau: threshold of the maximum logit.
        alpha: share of the rescaling that applies to the queries.
        heads: name of the axis of heads.
        exponents: of γ, by the name of a segment; by default the decoder's, as above.

    Raises:
        ValueError: if there is nothing to scale, a segment is unknown, a layer lacks queries or keys, or queries or
            keys are normalised after their projection (QK-norm), so that scaling it would change no logit; from
            ``update`` if ``max_logit`` or the parameters are missing, its shape is wrong, or parameters are not
            float32.
    """
    if exponents is None:
        exponents = {"q_nope": alpha, "q_rope": 1.0, "k_nope": 1.0 - alpha, "q": 1.0, "k": 0.0, "v": 0.0}
    spec_list, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    shape = _statistic_shape(spec_list, exponents, heads)

    def update(updates: Any, state: Any, params: Any = None, *, max_logit: Array | None = None, **extra: Any):
        del extra
        if params is None or max_logit is None:
            raise ValueError("QK-Clip needs the parameters and the step's max_logit [layers, heads]")
        if max_logit.shape != shape:
            raise ValueError(f"max_logit has shape {max_logit.shape}; the model has {shape} layers and heads")
        gamma_LH = qk_clip_gamma(max_logit, tau)
        leaves = zip(spec_list, treedef.flatten_up_to(updates), treedef.flatten_up_to(params), strict=True)
        return treedef.unflatten(
            _clip(spec, exponents, gamma_LH, update_leaf, weight, heads) if spec.segments else update_leaf
            for spec, update_leaf, weight in leaves
        ), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _clip(
    spec: ParamSpec, exponents: dict[str, float], gamma_LH: Array, update: Array, weight: Array, heads: str
) -> Array:
    """Update that leads to the scaled weight; unchanged bit for bit where γ = 1 or the exponent is 0."""
    if weight.dtype != jnp.float32:
        raise ValueError(f"QK-Clip scales float32 master weights; {spec.hf} is {weight.dtype}")
    widths = [width for _, width in spec.segments]
    exponent_C = np.repeat([exponents[name] for name, _ in spec.segments], widths).astype(np.float32)
    if not exponent_C.any():  # Keys and values that several heads share have no axis of heads to scale along.
        return update
    # An empty slot has the number -1 and takes the last layer's factor, which scales zeros.
    gamma_LH1 = gamma_LH[spec.layer_numbers][..., None]
    factor = _broadcastable(spec, gamma_LH1**exponent_C, heads)
    clipped = _broadcastable(spec, (gamma_LH1 != 1.0) & (exponent_C != 0.0), heads)
    return jnp.where(clipped, factor * (weight + update) - weight, update)


def _broadcastable(spec: ParamSpec, x_LHC: Array, heads: str) -> Array:
    """Reshapes ``[*layer axes, heads, last axis]`` so that it broadcasts against the leaf."""
    names = (*spec.layer_axes, heads, spec.axes[-1])
    ordered = x_LHC.transpose([names.index(axis) for axis in spec.axes if axis in names])
    return ordered.reshape([size if axis in names else 1 for axis, size in zip(spec.axes, spec.shape, strict=True)])


def _statistic_shape(spec_list: list[ParamSpec], exponents: dict[str, float], axis: str) -> tuple[int, int]:
    """(layers, heads) of the scaled weights; checks that every layer has queries once and keys once."""
    targets = [spec for spec in spec_list if spec.segments]
    covered = {"q": [], "k": []}
    for spec in targets:
        names = [name for name, _ in spec.segments]
        if unknown := set(names) - set(exponents):
            raise ValueError(f"QK-Clip does not know the segments {sorted(unknown)} of {spec.hf}")
        if spec.role == "norm":
            raise ValueError(f"QK-Clip cannot scale projections that {spec.hf} normalises afterwards (QK-norm)")
        if not spec.inputs:  # The bias belongs to a projection that is counted.
            continue
        layers = [number for number in spec.layer_numbers.ravel().tolist() if number >= 0]
        for side, layer_list in covered.items():
            if any(name.startswith(side) for name in names):
                layer_list.extend(layers)
    heads = {spec.size_of((axis,)) for spec in targets if axis in spec.axes}
    count = len(covered["q"])
    if not count or len(heads) != 1 or any(sorted(c) != list(range(count)) for c in covered.values()):
        raise ValueError(f"QK-Clip needs queries and keys of every layer, with one number of heads: {covered}, {heads}")
    return count, heads.pop()
