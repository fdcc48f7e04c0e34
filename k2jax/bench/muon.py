"""Muon's update of nano's matrices (momentum, Newton-Schulz, decay, learning rate) against ``optax.contrib.muon``."""

from __future__ import annotations

import functools

import jax
import optax

from k2jax.bench.timing import Row, time_rows
from k2jax.config import model_preset
from k2jax.config.schema import OptimizerConfig
from k2jax.model import model_specs
from k2jax.optim import group_of, scale_by_muon
from k2jax.params import ParamSpec, initialize, is_spec, named_specs
from pallas_kernels.newton_schulz import coefficients

RATE, DECAY = 1e-3, 0.1


def measure(rounds: int = 10) -> list[Row]:
    """One row; both sides compute the same update in float32 from the same gradients."""
    specs = {name: spec for name, spec in named_specs(model_specs(model_preset("nano"))) if _is_muon(spec)}
    params = initialize(specs, jax.random.key(0), 0.02)
    grads = initialize(specs, jax.random.key(1), 1e-3)
    candidates = {name: _update(optimizer, grads, params) for name, optimizer in _optimizers(specs).items()}
    count = sum(spec.size for spec in specs.values())
    name = f"Muon update, nano's {len(specs)} leaves, {count / 1e6:.1f}M parameters"
    return time_rows(name, candidates, rounds)


def _is_muon(spec: ParamSpec) -> bool:
    return group_of(spec, OptimizerConfig(name="muon")) == "muon"


def _optimizers(specs: dict[str, ParamSpec]) -> dict[str, optax.GradientTransformation]:
    ours = optax.chain(
        scale_by_muon(specs, coefficients=coefficients("muon", 5)),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_learning_rate(RATE),
    )
    theirs = optax.contrib.muon(
        RATE,
        weight_decay=DECAY,
        consistent_rms=0.2,
        nesterov=False,
        muon_weight_dimension_numbers=jax.tree.map(_dimension_numbers, specs, is_leaf=is_spec),
    )
    return {"ours": ours, "optax.contrib.muon": theirs}


def _dimension_numbers(spec: ParamSpec) -> optax.contrib.MuonDimensionNumbers:
    """Axes of the matrices in optax's form. Gate and up are separate matrices: their axis belongs to the stack."""
    reduction, output = (tuple(spec.axes.index(axis) for axis in axes) for axes in (spec.inputs, spec.outputs))
    return optax.contrib.MuonDimensionNumbers(reduction, output)


def _update(optimizer: optax.GradientTransformation, grads: dict, params: dict):
    return functools.partial(jax.jit(optimizer.update), grads, optimizer.init(params), params)
