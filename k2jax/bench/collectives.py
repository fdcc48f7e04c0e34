"""What Muon's update sends between chips, against ``optax.contrib.muon`` on the same weights, sharded alike.

Both are compiled for eight TPU v5e chips with the TPU's own compiler (extra ``[tpu]``); nothing runs. Only the update
is compared: gradients are already summed, and lie as the weights do at rest.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from k2jax.analysis import topology
from k2jax.analysis.collectives import Collective, collectives
from k2jax.analysis.hlo import Program
from k2jax.bench.timing import Row
from k2jax.config import Config, model_preset
from k2jax.config.schema import OptimizerConfig, ParallelConfig, TrainConfig
from k2jax.optim import scale_by_muon
from k2jax.parallel.layout import Layout, make_layout
from k2jax.parallel.mesh import make_mesh
from k2jax.parallel.ownership import make_newton_schulz
from k2jax.params import ParamSpec, abstract, is_spec, map_specs
from pallas_kernels.newton_schulz import coefficients

TOPOLOGY = "v5e:2x4"
WIRE = {"all-reduce": 2.0}  # bytes sent over bytes of the array, others 1; the factor (n - 1) / n is left out


def measure(rounds: int = 1) -> list[Row]:
    """Bytes of one update's collectives per device, for K2's matrices in small, data 4 x expert 2."""
    del rounds  # nothing is timed
    topology.prepare()
    layout = make_layout(experiment(), make_mesh(experiment(), topology.devices(TOPOLOGY)))
    sent = {name: moved(update, layout) for name, update in (("ours", ours(layout)), ("optax", baseline(layout)))}
    ours_mb, optax_mb = (sum(size(one) for one in found) / 1e6 for found in sent.values())
    exchanges = sum(one.count for one in sent["ours"] if one.kind == "all-to-all")
    shapes = {tuple(sorted(sides)) for sides in matrix_sides(layout)}
    name = f"Muon's collectives, {exchanges:.0f} all-to-alls for {len(shapes)} shapes of matrices"
    return [Row(name, ours_mb, optax_mb, optax_mb / ours_mb, "MB", f"compiled for {TOPOLOGY}", "optax.contrib.muon")]


def experiment() -> Config:
    """A K2 with every kind of matrix, small enough to compile in a minute."""
    sizes = {"layers": 9, "d_model": 1024, "heads": 8, "q_lora_rank": 512, "kv_lora_rank": 256, "dense_ffn": 2048}
    model = dataclasses.replace(model_preset("k2"), **sizes, expert_ffn=512, experts=16, vocab=4096)
    parallel = ParallelConfig(data=4, expert=2)
    return Config(model=model, optimizer=OptimizerConfig(), train=TrainConfig(batch_size=8), parallel=parallel)


def _masked(layout: Layout, tree: Any) -> Any:
    """The tree with Muon's matrices alone."""
    return map_specs(lambda spec, leaf: leaf if spec.role == "matrix" else optax.MaskedNode(), layout.specs, tree)


def ours(layout: Layout) -> optax.GradientTransformation:
    """Muon as training has it."""
    steps = coefficients("muon", 5)
    return scale_by_muon(layout.specs, coefficients=steps, newton_schulz=make_newton_schulz(layout))


def baseline(layout: Layout) -> optax.GradientTransformation:
    """optax's, told which axes of each weight are a matrix."""

    def numbers(spec: ParamSpec) -> Any:
        if spec.role != "matrix":
            return optax.MaskedNode()
        at = lambda names: tuple(spec.axes.index(axis) for axis in names)  # noqa: E731
        return optax.contrib.MuonDimensionNumbers(at(spec.inputs), at(spec.outputs))

    dimensions = map_specs(numbers, layout.specs)
    return optax.contrib.scale_by_muon(weight_dimension_numbers=dimensions, nesterov=False, ns_steps=5)


def moved(muon: optax.GradientTransformation, layout: Layout) -> list[Collective]:
    """Collectives of a compiled update."""
    shardings = layout.shardings(layout.rest)
    place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=sharding)  # noqa: E731
    weights = _masked(layout, jax.tree.map(place, abstract(layout.specs), shardings))
    state = jax.eval_shape(muon.init, weights)
    by_shape = {leaf.shape: leaf.sharding for leaf in jax.tree.leaves(weights)}
    state = jax.tree.map(lambda x: place(x, by_shape[x.shape]) if x.shape in by_shape else x, state)

    def update(grads: Any, state: Any) -> Any:
        updates, state = muon.update(grads, state)
        constrain = jax.lax.with_sharding_constraint
        return jax.tree.map(lambda u, w: constrain(u, w.sharding), updates, weights), state

    compiled = jax.jit(update).trace(weights, state).lower(lowering_platforms=("tpu",)).compile()
    return collectives(Program(compiled.as_text()), layout.mesh.size)[0]


def size(one: Collective) -> float:
    """Bytes that a device sends."""
    return one.bytes * one.count * WIRE.get(one.kind, 1.0)


def matrix_sides(layout: Layout) -> list[tuple[int, int]]:
    """Sides of every kind of matrix."""
    specs = jax.tree.leaves(layout.specs, is_leaf=is_spec)
    return [(spec.size_of(spec.inputs), spec.size_of(spec.outputs)) for spec in specs if spec.role == "matrix"]
