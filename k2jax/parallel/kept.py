"""What a pipeline keeps of a chunk from its forward to its backward tick (``train.keep_across``).

``jax.vjp`` gives the backward pass of a chunk as a function whose leaves are what it reads: weights, the chunk's input,
what the micro-batch alone decides (masks, rotary tables), and the residuals that the policy of ``Remat`` keeps by name.
The last alone lie in slots between the two ticks. A backward tick builds the function once more from the others, and
runs none of the forward pass for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array
from jax.extend import core


def kept_leaves(backward: Callable[[Array], Any], x: Array) -> tuple[int, ...]:
    """Numbers of the leaves that only the chunk's forward can give: those that are computed from its input.

    Args:
        backward: the chunk's backward pass as a tree, from its input.
        x: the input, ``[B, S, D]``.
    """
    jaxpr = jax.make_jaxpr(lambda x: jax.tree.leaves(backward(x)))(x).jaxpr
    computed: set[core.Var] = set()
    for equation in jaxpr.eqns:
        if not computed.union(jaxpr.invars).isdisjoint(_read(equation)):
            computed.update(equation.outvars)
    return tuple(number for number, var in enumerate(jaxpr.outvars) if isinstance(var, core.Var) and var in computed)


def take_leaves(tree: Any, numbers: Sequence[int]) -> list[Array]:
    """The leaves of these numbers."""
    leaves = jax.tree.leaves(tree)
    return [leaves[number] for number in numbers]


def with_leaves(build: Callable[[], Any], numbers: Sequence[int], values: Sequence[Array]) -> Any:
    """The tree that ``build`` makes, with other leaves at these numbers; runs what the rest is computed from alone."""
    kept, forms = dict(zip(numbers, values, strict=True)), []

    def rest() -> list[Array]:
        leaves, form = jax.tree.flatten(build())
        forms.append(form)
        return [leaf for number, leaf in enumerate(leaves) if number not in kept]

    others = iter(core.jaxpr_as_fun(_without_dead_code(jax.make_jaxpr(rest)()))())
    (form,) = forms
    return jax.tree.unflatten(form, [kept[n] if n in kept else next(others) for n in range(form.num_leaves)])


def _without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Without equations whose results nothing reads, collectives too, which JAX's own elimination leaves alone."""
    read = {var for var in closed.jaxpr.outvars if isinstance(var, core.Var)}
    live = []
    for equation in reversed(closed.jaxpr.eqns):
        if not read.isdisjoint(equation.outvars):
            live.append(equation)
            read.update(_read(equation))
    return closed.replace(jaxpr=closed.jaxpr.replace(eqns=live[::-1]))


def _read(equation: Any) -> list[core.Var]:
    return [var for var in equation.invars if isinstance(var, core.Var)]
