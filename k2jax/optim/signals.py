"""Parts of a vision tower whose gradient is 0 in an update: they keep their weights and state to the last bit.

The size of an update of Muon or AdamW does not depend on that of the gradient. Without this an update of text alone
would move the tower by what is left of older gradients, at full size, and weight decay would go on.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
import jax.numpy as jnp
import optax

from k2jax.optim.groups import parts_of
from k2jax.params import Specs


def signals_of(specs: Specs, grads: Any) -> dict[str, Array]:
    """Whether each part of the model, ``text``, ``tower`` or ``projector``, has a gradient that is not 0, ``[]`` bool.

    NaN is a signal, so that it is seen. ``grads`` are those of the whole update, over all micro-batches and devices.
    """
    signals: dict[str, Array] = {}
    for part, grad in zip(jax.tree.leaves(parts_of(specs)), jax.tree.leaves(grads), strict=True):
        here = jnp.any(grad != 0)
        signals[part] = signals[part] | here if part in signals else here
    return signals


def with_signals(
    specs: Specs, transformation: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Gives ``transformation`` the argument ``signals``: see ``signals_of``, of the gradients as they come."""

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return transformation.update(grads, state, params, signals=signals_of(specs, grads), **extra)

    return optax.GradientTransformationExtraArgs(transformation.init, update)


def where_signal(
    part: str, rule: optax.GradientTransformation, *more: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
    """The chain of ``rule`` and ``more`` where ``signals[part]``; elsewhere the update is 0 and the rule's state stays.

    The states of ``more``, which are those of schedules, go on.
    """
    chain = optax.with_extra_args_support(optax.chain(rule, *more))

    def update(
        grads: Any, state: Any, params: Any = None, *, signals: dict[str, Array], **extra: Any
    ) -> tuple[Any, Any]:
        updates, (new, *others) = chain.update(grads, state, params, **extra)
        updates = jax.tree.map(lambda update: jnp.where(signals[part], update, 0), updates)
        kept = jax.tree.map(lambda after, before: jnp.where(signals[part], after, before), new, state[0])
        return updates, (kept, *others)

    return optax.GradientTransformationExtraArgs(chain.init, update)
