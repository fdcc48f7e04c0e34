"""What a function really keeps for its backward pass, by the names that its activations bear."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import jax
import numpy as np


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
