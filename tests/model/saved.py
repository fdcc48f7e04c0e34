"""What a function really keeps for its backward pass, by the names that its activations bear."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import jax
import numpy as np

from tests.jaxpr import equations


class Saved(NamedTuple):
    """One residual: its name, or how it was made; ``argument`` for what was there before."""

    name: str
    dtype: str
    bytes: int
    on_host: bool


def saved(function, *args) -> list[Saved]:
    """The residuals of ``function`` at ``args``; what a loop inside it keeps bears the name ``scan``."""
    closed = jax.make_jaxpr(lambda *leaves: jax.vjp(function, *leaves))(*args)
    jaxpr = closed.jaxpr
    outputs = len(jax.tree.leaves(jax.eval_shape(function, *args)))
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    residuals = {var for var in jaxpr.outvars[outputs:] if not hasattr(var, "val")}
    return [_describe(var, made_by) for var in residuals if var.aval.size]


def _describe(var, made_by) -> Saved:
    aval, eqn = var.aval, made_by.get(var)
    while eqn is not None and eqn.primitive.name in ("device_put", "reduce_precision"):
        eqn = made_by.get(eqn.invars[0])
    name = "argument" if eqn is None else eqn.params["name"] if eqn.primitive.name == "name" else eqn.primitive.name
    size = aval.size * np.dtype(aval.dtype).itemsize
    return Saved(name, str(aval.dtype), size, aval.memory_space.name == "Host")


def named_bytes(residuals: list[Saved]) -> dict[str, int]:
    """Name to bytes, all arrays of a name together."""
    total = defaultdict(int)
    for residual in residuals:
        total[residual.name] += residual.bytes
    return dict(total)


def kept_by_loops(program, groups: dict[str, set[str]]) -> dict[str, set[Saved]]:
    """What every loop over the layers of a group keeps of its names, in the program of a loss and its gradients.

    Args:
        program: a jaxpr in which layers run in loops; a group's loop lies in no other group's.
        groups: group to the names that its layers make.

    Returns:
        Group to what one layer keeps.
    """
    found = {}
    for loop in (eqn for eqn in equations(program) if eqn.primitive.name == "scan"):
        body, carried = loop.params["jaxpr"].jaxpr, loop.params["num_carry"]
        names = {eqn.params["name"] for eqn in equations(body) if eqn.primitive.name == "name"}
        made_by = {var: eqn for eqn in body.eqns for var in eqn.outvars}
        stacked = {_describe(var, made_by) for var in body.outvars[carried:] if not hasattr(var, "val")}
        kept = {part for part in stacked if part.name in names}
        for group, made in groups.items():
            if kept and names <= made:  # an outer loop makes the names of all groups
                assert found.setdefault(group, kept) == kept
    return found
