"""A program of the inference engine, compiled for a TPU topology: its memory, collectives and an estimate of its time.

Every device holds all weights but the routed experts, and the cache of its own sequences, each as long as asked for.
Decoding is one new token of every sequence: one run of the loop of ``inference.decode`` is counted. Prefill is one
full chunk of prompts whose caches are full but for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from k2jax.aot.cost.hbm import Hbm, shard_bytes
from k2jax.aot.cost.jaxpr_flops import DynamicShares, traced_cost
from k2jax.aot.cost.layer_costs import Cost, mean_routed_cost
from k2jax.aot.cost.roofline import Work, roofline
from k2jax.aot.hlo.measured_collectives import ExchangePart, measured_collectives
from k2jax.aot.hlo.module import HloModule
from k2jax.aot.program import ProgramReport, compile_for_tpu
from k2jax.aot.topology import chip_of, devices
from k2jax.chips import Chip
from k2jax.config.schema import ModelConfig
from k2jax.errors import UserError
from k2jax.inference.decode import Continuation, decode
from k2jax.inference.forward import Chunk, Targets, cache_shape, run_chunk
from k2jax.inference.mesh import CACHE, ROWS, exchanged_parts, make_engine_mesh
from k2jax.inference.sampler import Choice
from k2jax.inference.shapes import PREFILL_TOKENS, PREFILL_WIDTHS
from k2jax.model import model_specs
from k2jax.params import map_specs
from k2jax.sharding import WHOLE_ROLES, neighbours, param_shardings
from pallas_kernels.implementation import target_platform

MODES = ("prefill", "decode")
PAGE_SIZE = 16
FILLED = 0.8  # of what the weights leave, where the number of sequences is not given: prefill needs room too


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingReport(ProgramReport):
    """A compiled program; its roofline is without an optimizer and without model FLOPs.

    Attributes:
        mode: ``prefill`` or ``decode``.
        slots: sequences, over all devices.
        context: tokens of each that have room in the cache.
        work: FLOPs and bytes of a step, on one device.
    """

    mode: str
    slots: int
    context: int
    work: Cost


def compile_serving(
    model: ModelConfig, mode: str, topology: str, *, expert: int, context: int, slots: int = 0
) -> ServingReport:
    """Compiles a program of the engine in bfloat16.

    Args:
        model: the architecture.
        mode: one of ``MODES``.
        topology: its devices.
        expert: devices that share the experts; there are as many groups of them as the topology has room for.
        context: longest sequence [tokens].
        slots: sequences over all devices; 0 takes as many as fit by their sizes.

    Raises:
        UserError: sizes that do not divide, or weights that do not fit on a device.
        DoesNotFit: the compiler found too little HBM.
    """
    chip, slice_devices = chip_of(topology), devices(topology)
    if len(slice_devices) % expert:
        raise UserError(
            f"config.parallel.expert {expert} does not divide the {len(slice_devices)} devices of {topology}; "
            f"{' or '.join(map(str, neighbours(len(slice_devices), expert)))} would"
        )
    mesh = make_engine_mesh(len(slice_devices) // expert, expert, slice_devices)
    params = _params(model, mesh)
    static = {"config": model, "mesh": mesh}
    with target_platform("tpu"):
        each = -(-slots // mesh.size) or _slots_that_fit(model, chip, shard_bytes(params), context, expert)
        program, arguments = _program(mode, model, mesh, each, context)
        traced = program.trace(params, *arguments, **static)
    compiled, seconds = compile_for_tpu(traced)
    cache, rows = arguments[:2]
    tokens = rows.tokens.size // mesh.size
    work = _work(traced.jaxpr.jaxpr, model, mesh, tokens)
    part = -(-tokens // _parts(model, mesh, tokens))
    measured = measured_collectives(HloModule(compiled.as_text()), chip, mesh, model, ExchangePart(part, part))
    return ServingReport(
        mode=mode,
        topology=topology,
        mesh=dict(mesh.shape),
        slots=each * mesh.size,
        context=context,
        tokens=rows.tokens.size,
        compile_seconds=seconds,
        hbm=_hbm(chip, compiled.memory_analysis(), shard_bytes(params), shard_bytes(cache)),
        collectives=measured.totals,
        work=work,
        roofline=roofline(chip, mesh.size, [Work(1, *work)], Work(0, 0, 0), measured.traffic, 0.0),
        notes=[],
    )


def _params(model: ModelConfig, mesh: Mesh) -> Any:
    specs = model_specs(model)

    def struct(spec: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        dtype = jnp.float32 if spec.role in WHOLE_ROLES else jnp.bfloat16
        return jax.ShapeDtypeStruct(spec.shape, dtype, sharding=sharding)

    return map_specs(struct, specs, param_shardings(specs, mesh))


def _program(mode: str, model: ModelConfig, mesh: Mesh, each: int, context: int) -> tuple[Any, tuple]:
    """The program, and ShapeDtypeStructs with shardings of what it takes beside the weights; the cache comes first.

    For ``each`` sequences of full length on every device.
    """
    longest = -(-context // PAGE_SIZE)
    width = min(PREFILL_WIDTHS[-1], context)
    rows = (each if mode == "decode" else min(each, PREFILL_TOKENS // width)) * mesh.size

    def struct(*shape: int, dtype: Any = jnp.int32, spec: PartitionSpec = ROWS) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    pages = (each * longest + 1) * mesh.size
    cache = struct(*cache_shape(model, pages, PAGE_SIZE), dtype=jnp.bfloat16, spec=CACHE)
    number, real = struct(rows), struct(rows, dtype=jnp.float32)
    if mode == "decode":
        seed, asked = struct(rows, dtype=jnp.uint32), struct(rows, dtype=jnp.bool)
        choice = Choice(real, real, real, top_k=number, seed=seed, index=number, alternatives=asked)
        continuation = Continuation(number, number, number, struct(rows, longest))
        return decode, (cache, continuation, choice, struct(spec=PartitionSpec()))
    tokens = struct(rows, width)
    return run_chunk, (cache, Chunk(tokens, number, number, struct(rows, longest), tokens), Targets(tokens, real))


def _slots_that_fit(model: ModelConfig, chip: Chip, weights: int, context: int, expert: int) -> int:
    """Sequences that a device has room for, beside its weights."""
    limit = chip.hbm_bytes / chip.devices
    layers, pages, size, width = cache_shape(model, -(-context // PAGE_SIZE), PAGE_SIZE)
    each = 2 * layers * pages * size * width
    slots = int(FILLED * (limit - weights) / each)
    if slots < 1:
        raise UserError(
            f"the weights take {weights / 1e9:,.1f} GB of a device with experts over {expert}, a sequence of "
            f"{context:,} tokens {each / 1e9:,.2f} GB, and there are {limit / 1e9:,.0f} GB; raise "
            "config.parallel.expert, or lower --context"
        )
    return slots


def _work(jaxpr: Any, model: ModelConfig, mesh: Mesh, tokens: int) -> Cost:
    """Products and kernels as traced; of routed experts the mean number of rows, not all that there is room for."""
    cost = traced_cost(jaxpr, mesh.size, DynamicShares(rows_in_use=0.0))
    layers = model.layers - model.dense_layers
    if not layers:
        return Cost(cost.flops, cost.bytes)
    parts = _parts(model, mesh, tokens)
    routed = mean_routed_cost(model, tokens / parts, mesh.shape["expert"])
    return Cost(cost.flops, cost.bytes) + routed.times(layers * parts)


def _parts(model: ModelConfig, mesh: Mesh, tokens: int) -> int:
    """Parts in which the tokens of a device are exchanged and computed."""
    ranks = mesh.shape["expert"]
    return exchanged_parts(model, tokens, ranks) if ranks > 1 else 1


def _hbm(chip: Chip, taken: Any, weights: int, cache: int) -> Hbm:
    return Hbm(
        {
            "weights": weights,
            "cache": cache,
            "batch": taken.argument_size_in_bytes - weights - cache,
            "results": taken.output_size_in_bytes - taken.alias_size_in_bytes,
            "temporaries": taken.temp_size_in_bytes,
        },
        chip.hbm_bytes / chip.devices,
    )
