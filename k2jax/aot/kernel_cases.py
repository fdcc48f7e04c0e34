"""Every kernel at the shapes of Kimi K2 on one device of its reference layout: 16-way expert parallelism, bfloat16.

Attention also at those of K2.5's tower.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
import numpy as np

from k2jax.config import model_preset
from k2jax.config.presets import vision_preset
from k2jax.model.attention import attention_of
from pallas_kernels import newton_schulz as ns
from pallas_kernels.expert_exchange import expert_combine, expert_dispatch
from pallas_kernels.grouped_matmul import grouped_matmul, grouped_matmul_transposed
from pallas_kernels.mla_attention import mla_attention
from pallas_kernels.mla_decode import mla_decode, whole_lanes
from pallas_kernels.routed_experts import routed_experts

K2 = model_preset("k2")
RANKS = 16
TOKENS = 4096  # of one rank
DTYPE = jnp.bfloat16


class KernelCase(NamedTuple):
    """A kernel at one shape.

    Attributes:
        kernel: its public name.
        direction: ``forward`` with its residuals where it has a gradient, or ``backward`` from them.
        shape: the sizes, as text.
        build: from the devices of a topology to the function and its arguments, ShapeDtypeStructs with shardings.
    """

    kernel: str
    direction: str
    shape: str
    build: Callable[[list[Any]], tuple[Callable[..., Any], tuple[Any, ...]]]


@functools.cache
def cases() -> list[KernelCase]:
    """Every case, in the order of the table."""
    return [*_attention(), *_vision_attention(), *_experts(), *_grouped(), *_exchange(), _decode(), _newton_schulz()]


def _attention() -> list[KernelCase]:
    listed = []
    for length in (4096, 32768):
        heads = (1, K2.heads, length)
        arguments = (
            _struct(*heads, K2.mla.qk_nope_dim),
            _struct(*heads, K2.mla.qk_rope_dim),
            _struct(*heads, K2.mla.qk_nope_dim),
            _struct(1, length, K2.mla.qk_rope_dim),
            _struct(*heads, K2.mla.v_dim),
            _struct(1, length, dtype=jnp.int32),
        )

        def attend(q_nope, q_rope, k_nope, k_rope, v, exit):
            return mla_attention(q_nope, q_rope, k_nope, k_rope, v, exit=exit, scale=0.07, impl="pallas")

        shape = f"{K2.heads} heads, {length:,} tokens"
        listed += _both_directions("mla_attention", shape, attend, arguments, (0, 1, 2, 3, 4))
    return listed


def _vision_attention() -> list[KernelCase]:
    """One row of patches of the published tower, attention in both directions inside images."""
    vision, length = vision_preset("moonvit"), 16384
    heads = _struct(1, vision.heads, length, vision.width // vision.heads)
    mask = _struct(1, length, dtype=jnp.int32)

    def attend(q, k, v, start, exit):
        without = jnp.zeros((*q.shape[:3], 0), q.dtype), jnp.zeros((1, length, 0), q.dtype)
        options = {"start": start, "exit": exit, "scale": 0.1, "impl": "pallas"}
        return mla_attention(q, without[0], k, without[1], v, **options)

    shape = f"{vision.heads} heads of K2.5's tower, {length:,} patches"
    return _both_directions("mla_attention", shape, attend, (heads, heads, heads, mask, mask), (0, 1, 2))


def _experts() -> list[KernelCase]:
    """One rank's experts with 4,096 tokens on every rank: the mean is as many copies as the tokens of one rank have."""
    rows, copies = TOKENS, TOKENS * K2.moe.active_experts
    arguments = (
        _struct(rows, K2.d_model),
        *_expert_weights(),
        _struct(rows, K2.moe.active_experts, dtype=jnp.int32),
        _struct(rows, K2.moe.active_experts, dtype=jnp.float32),
    )
    function = functools.partial(routed_experts, impl="pallas")
    shape = f"{K2.moe.experts} experts / {RANKS}, {K2.d_model} x {K2.moe.expert_ffn}, {copies:,} copies"
    return _both_directions("routed_experts", shape, function, arguments, (0, 1, 2, 4))


def _grouped() -> list[KernelCase]:
    rows = TOKENS * K2.moe.active_experts
    _, w2 = _expert_weights()
    groups, hidden, width = w2.shape
    sizes = _struct(groups, dtype=jnp.int32)
    shape = f"{rows:,} rows, {groups} groups, {hidden} x {width}"
    rows_in, rows_out = _struct(rows, hidden), _struct(rows, width)
    multiply = functools.partial(grouped_matmul, impl="pallas")
    transposed = functools.partial(grouped_matmul_transposed, impl="pallas")
    return [
        *_both_directions("grouped_matmul", shape, multiply, (rows_in, w2, sizes), (0, 1)),
        *_both_directions("grouped_matmul_transposed", shape, transposed, (rows_in, rows_out, sizes), (0, 1)),
    ]


def _exchange() -> list[KernelCase]:
    """The exchange there and back, with every device of the topology as a rank.

    Bytes and roofline are those of HBM, not of the links between chips.
    """

    def there_and_back(x, ids, gates):
        received, route = expert_dispatch(
            x, ids, gates, experts=K2.moe.experts, axis_name="expert", backend="dma", impl="pallas"
        )
        return expert_combine(received.x, route)

    def pull_back(x, ids, gates):
        return jax.vjp(lambda x: there_and_back(x, ids, gates), x)[1](x)[0]

    shape = f"{TOKENS:,} tokens a rank, {K2.moe.active_experts} of {K2.moe.experts} experts"
    both = (("forward", there_and_back), ("backward", pull_back))
    return [
        KernelCase("expert_dispatch + combine", direction, shape, functools.partial(_on_all_devices, function))
        for direction, function in both
    ]


def _on_all_devices(function: Callable, devices: list[Any]) -> tuple[Callable, tuple[Any, ...]]:
    mesh = Mesh(np.array(devices), ("expert",))
    split = PartitionSpec("expert")
    rows = TOKENS * len(devices)
    arguments = (
        _struct(rows, K2.d_model),
        _struct(rows, K2.moe.active_experts, dtype=jnp.int32),
        _struct(rows, K2.moe.active_experts, dtype=jnp.float32),
    )
    mapped = jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return mapped, _placed(arguments, NamedSharding(mesh, split))


def _decode() -> KernelCase:
    sequences, page, context = 32, 64, 32768
    width = whole_lanes(attention_of(K2).cache_width(K2))
    pages = context // page
    function = functools.partial(mla_decode, latent=K2.mla.kv_lora_rank, scale=0.07, impl="pallas")
    arguments = (
        _struct(sequences, K2.heads, width),
        _struct(2, sequences * pages // 8, page, width),  # two layers; how many pages there are changes no program
        _struct(dtype=jnp.int32),
        _struct(sequences, pages, dtype=jnp.int32),
        _struct(sequences, dtype=jnp.int32),
    )
    return _on_one("mla_decode", "forward", f"{sequences} sequences, {context:,} cached tokens", function, arguments)


def _newton_schulz() -> KernelCase:
    w13, _ = _expert_weights()
    count, rows, _, columns = w13.shape
    steps = ns.coefficients("muon", 5)
    return _on_one(
        "newton_schulz",
        "forward",
        f"{count} experts' {rows} x {columns}, 5 steps",
        lambda x: ns.newton_schulz(x, steps, impl="pallas"),
        (_struct(count, rows, columns, dtype=jnp.float32),),
    )


def _expert_weights() -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    local = K2.moe.experts // RANKS
    return _struct(local, K2.d_model, 2, K2.moe.expert_ffn), _struct(local, K2.moe.expert_ffn, K2.d_model)


def _struct(*shape: int, dtype: Any = DTYPE) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _placed(arguments: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)


def _on_one(kernel: str, direction: str, shape: str, function: Callable, arguments: Any) -> KernelCase:
    return KernelCase(
        kernel, direction, shape, lambda devices: (function, _placed(arguments, SingleDeviceSharding(devices[0])))
    )


def _both_directions(
    kernel: str, shape: str, function: Callable, arguments: tuple, diff: tuple[int, ...]
) -> list[KernelCase]:
    """Forward with its residuals, and backward from them to the arguments ``diff``."""

    def forward(*arguments: Any) -> Any:
        def of_diff(*chosen: Any) -> Any:
            filled = dict(enumerate(arguments)) | dict(zip(diff, chosen, strict=True))
            return function(*filled.values())

        return jax.vjp(of_diff, *(arguments[index] for index in diff))

    out, pullback = jax.eval_shape(forward, *arguments)
    return [
        _on_one(kernel, "forward", shape, forward, arguments),
        _on_one(kernel, "backward", shape, lambda pullback, dout: pullback(dout), (pullback, out)),
    ]
