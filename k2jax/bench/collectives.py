"""Bytes that Muon's update sends between chips, against ``optax.contrib.muon`` on the same weights, sharded alike.

Both are compiled for eight TPU v5e chips with the TPU's own compiler (extra ``[tpu]``); nothing is executed. Only the
update is compared: gradients are already summed and have the weights' sharding between steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from k2jax.aot import topology
from k2jax.aot.hlo.collective_ops import Collective, collectives
from k2jax.aot.hlo.module import HloModule
from k2jax.bench.timing import Row, cost_row
from k2jax.config import Config, model_preset, replace_keys
from k2jax.config.schema import OptimizerConfig, ParallelConfig, TrainConfig
from k2jax.optim import scale_by_muon
from k2jax.parallel.layout import Layout, make_layout
from k2jax.parallel.mesh import make_mesh
from k2jax.parallel.newton_schulz import make_newton_schulz
from k2jax.params import ParamSpec, abstract, is_spec, map_specs
from pallas_kernels.newton_schulz import coefficients

TOPOLOGY = "v5e:2x4"
SENT_PER_BYTE = {"all-reduce": 2.0}  # bytes sent per byte of the array, 1 for others; without the factor (n - 1) / n


def measure(rounds: int = 1) -> list[Row]:
    """Bytes that a device sends in one update, for a small model with K2's kinds of matrices, data 4 x expert 2."""
    del rounds  # Nothing is timed.
    topology.prepare()
    layout = make_layout(experiment(), make_mesh(experiment(), topology.devices(TOPOLOGY)))
    sent = {name: moved(update, layout) for name, update in (("ours", ours(layout)), ("optax", baseline(layout)))}
    ours_mb, optax_mb = (sum(size(c) for c in update) / 1e6 for update in sent.values())
    exchanges = sum(c.count for c in sent["ours"] if c.kind == "all-to-all")
    shapes = {tuple(sorted(sides)) for sides in matrix_sides(layout)}
    name = f"Muon's collectives, {exchanges:.0f} all-to-alls for {len(shapes)} shapes of matrices"
    return [cost_row(name, ours_mb, optax_mb, "MB", "optax.contrib.muon", device=f"compiled for {TOPOLOGY}")]


def experiment() -> Config:
    """A model with all kinds of K2's matrices, small enough to compile in a minute."""
    sizes = {
        "layers": 9,
        "d_model": 1024,
        "heads": 8,
        "mla.q_lora_rank": 512,
        "mla.kv_lora_rank": 256,
        "dense_ffn": 2048,
    }
    model = replace_keys(model_preset("k2"), {**sizes, "moe.expert_ffn": 512, "moe.experts": 16, "vocab": 4096})
    parallel = ParallelConfig(data=4, expert=2)
    return Config(model=model, optimizer=OptimizerConfig(), train=TrainConfig(batch_size=8), parallel=parallel)


def _masked(layout: Layout, tree: Any) -> Any:
    """Tree with all leaves masked but Muon's matrices."""
    return map_specs(lambda spec, leaf: leaf if spec.role == "matrix" else optax.MaskedNode(), layout.specs, tree)


def ours(layout: Layout) -> optax.GradientTransformation:
    """Muon as in training."""
    steps = coefficients("muon", 5)
    return scale_by_muon(layout.specs, coefficients=steps, newton_schulz=make_newton_schulz(layout))


def baseline(layout: Layout) -> optax.GradientTransformation:
    """Optax's Muon, with the axes of each weight that form a matrix."""

    def numbers(spec: ParamSpec) -> Any:
        if spec.role != "matrix":
            return optax.MaskedNode()
        inputs, outputs = (tuple(map(spec.axes.index, names)) for names in (spec.inputs, spec.outputs))
        return optax.contrib.MuonDimensionNumbers(inputs, outputs)

    dimensions = map_specs(numbers, layout.specs)
    return optax.contrib.scale_by_muon(weight_dimension_numbers=dimensions, nesterov=False, ns_steps=5)


def moved(muon: optax.GradientTransformation, layout: Layout) -> list[Collective]:
    """Collectives of a compiled update."""
    shardings = layout.shardings(layout.storage)
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
    return collectives(HloModule(compiled.as_text()), layout.mesh.size)[0]


def size(collective: Collective) -> float:
    """Bytes that a device sends in a collective."""
    return collective.bytes * collective.count * SENT_PER_BYTE.get(collective.kind, 1.0)


def matrix_sides(layout: Layout) -> list[tuple[int, int]]:
    """Sides of all kinds of matrices."""
    specs = jax.tree.leaves(layout.specs, is_leaf=is_spec)
    return [(spec.size_of(spec.inputs), spec.size_of(spec.outputs)) for spec in specs if spec.role == "matrix"]
