"""Every kernel against the operations that it replaces, forward and backward where it is differentiable.

On a CPU the sizes are nano's in float32, on an accelerator those of one Kimi K2 layer, reduced to fit into memory, in
bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from importlib.util import find_spec
import sys
from typing import Any

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.bench import attention, experts
from k2jax.bench.timing import Row, time_rows
from k2jax.config import ModelConfig, model_preset
from pallas_kernels import newton_schulz as ns
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.mla_attention import mla_attention
from pallas_kernels.mla_decode import mla_decode, whole_lanes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the benchmarks.

    Attributes:
        model: widths.
        dtype: dtype of all arrays but the optimizer's.
        sequences: (batch, tokens) of attention.
        path: tokens from the root of the tree to a leaf.
        tokens: number of routed tokens.
        experts: number of experts on one device.
        context: cached tokens of each decoded sequence.
    """

    model: ModelConfig
    dtype: Any
    sequences: tuple[tuple[int, int], ...]
    path: int
    tokens: int
    experts: int
    context: int


BRANCHES, SHARED = 8, 0.75  # leaves of the tree, and the share of a path that is common to all of them
SEQUENCES = 16  # sequences that are decoded at a time


def measure(rounds: int = 10) -> list[Row]:
    """Rows for each kernel and baseline that the device supports; others are named on the error output."""
    sizes = device_sizes()
    rows = [row for batch, length in sizes.sequences for row in _attention(sizes, batch, length, rounds)]
    rows += [*_tree(sizes, rounds), *_experts(sizes, rounds), *_grouped(sizes, rounds)]
    return [*rows, *_decode(sizes, rounds), *_newton_schulz(sizes, rounds)]


def device_sizes() -> Sizes:
    """Sizes for the default device."""
    if jax.default_backend() == "cpu":
        nano = model_preset("nano")
        return Sizes(
            model=nano,
            dtype=jnp.float32,
            sequences=((8, 256), (1, 2048)),
            path=1024,
            tokens=2048,
            experts=nano.moe.experts,
            context=1024,
        )
    k2 = model_preset("k2")
    return Sizes(
        model=k2,
        dtype=jnp.bfloat16,
        sequences=((1, 4096),),
        path=4096,
        tokens=4096,
        experts=64,
        context=8192,
    )


def _attention(sizes: Sizes, batch: int, length: int, rounds: int) -> list[Row]:
    arrays = attention.inputs(sizes.model, batch, length, sizes.dtype)
    candidates = {
        "ours": attention.gradients(attention.ours),
        "dense scores": attention.gradients(attention.dense),
        "jax.nn.dot_product_attention": attention.gradients(_dot_product_attention),
    }
    name = f"mla_attention, forward + backward, {batch} x {length:,}, {sizes.model.heads} heads"
    return time_rows(name, {name: functools.partial(f, *arrays) for name, f in candidates.items()}, rounds)


def _dot_product_attention(q_nope: Array, q_rope: Array, k_nope: Array, k_rope: Array, v: Array) -> tuple[Array, Array]:
    """``jax.nn.dot_product_attention``, which needs a rope key for each head and values as wide as keys.

    It has no maximum logit, so zeros are returned.
    """
    q = jnp.concatenate([q_nope, q_rope], -1)
    k = jnp.concatenate([k_nope, jnp.broadcast_to(k_rope[:, None], q_rope.shape)], -1)
    padded = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, q.shape[-1] - v.shape[-1])))
    out = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, padded)), is_causal=True)
    return out.swapaxes(1, 2)[..., : v.shape[-1]], jnp.zeros(q.shape[1])


def _tree(sizes: Sizes, rounds: int) -> list[Row]:
    """A trajectory tree in one pass against its separate paths."""
    shared = int(SHARED * sizes.path)
    exits = tree_exits(shared, sizes.path - shared, BRANCHES)
    tree = attention.inputs(sizes.model, 1, len(exits), sizes.dtype)
    paths = attention.inputs(sizes.model, BRANCHES, sizes.path, sizes.dtype)
    run = _tree_gradients(jnp.asarray(exits)[None])
    saved = pairs_saved(exits, sizes.path)
    name = f"mla_attention, tree of {BRANCHES} x {sizes.path:,}, {SHARED:.0%} shared, {saved:.2f} x fewer pairs"
    ours = attention.gradients(attention.ours)
    runs = {"tree": functools.partial(run, *tree), "separate paths": functools.partial(ours, *paths)}
    return time_rows(name, runs, rounds)


def tree_exits(shared: int, branch: int, branches: int) -> np.ndarray:
    """Exits of a shared prefix with ``branches`` leaves of ``branch`` tokens, in depth-first order; int32."""
    length = shared + branches * branch
    ends = shared + branch * (1 + np.arange(branches))
    return np.concatenate([np.full(shared, length), np.repeat(ends, branch)]).astype(np.int32)


def pairs_saved(exits: np.ndarray, path: int) -> float:
    """Number of visible pairs of the separate paths over that of the tree."""
    in_tree = int((exits - np.arange(len(exits))).sum())
    return BRANCHES * path * (path + 1) / 2 / in_tree


def _tree_gradients(exit: Array) -> Callable[..., Any]:
    def attend(*arrays: Array) -> tuple[Array, Array]:
        out, stats = mla_attention(*arrays, exit=exit, scale=attention.scale(*arrays[:2]))
        return out, stats.max_logit

    return attention.gradients(attend)


def _experts(sizes: Sizes, rounds: int) -> list[Row]:
    return experts.compare(sizes.model, sizes.experts, sizes.tokens, sizes.dtype, rounds)


def _grouped(sizes: Sizes, rounds: int) -> list[Row]:
    """Rows of grouped products, on a TPU only: elsewhere ``grouped_matmul`` is ``lax.ragged_dot``."""
    if jax.default_backend() != "tpu":
        print(f"not run: grouped_matmul is lax.ragged_dot itself on a {jax.default_backend()}", file=sys.stderr)
        return []
    rows, width, hidden = sizes.tokens * sizes.model.moe.active_experts, sizes.model.d_model, sizes.model.moe.expert_ffn
    lhs, rhs = attention.random_arrays(((rows, width), (sizes.experts, width, hidden)), sizes.dtype)
    counts = jnp.full((sizes.experts,), rows // sizes.experts, jnp.int32)
    candidates = {"ours": grouped_matmul, "lax.ragged_dot": lax.ragged_dot} | _optional()
    compiled = {name: jax.jit(jax.grad(_squares(f), argnums=(0, 1))) for name, f in candidates.items()}
    name = f"grouped_matmul, forward + backward, {rows:,} rows, {sizes.experts} groups"
    return time_rows(name, {name: functools.partial(f, lhs, rhs, counts) for name, f in compiled.items()}, rounds)


def _optional() -> dict[str, Callable[..., Array]]:
    """Grouped products of other libraries, if they are installed."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    functions = {"megablox": gmm}
    if find_spec("tokamax"):
        import tokamax

        functions["tokamax"] = tokamax.ragged_dot
    else:
        print("not run: tokamax is not installed", file=sys.stderr)
    return functions


def _squares(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda lhs, rhs, counts: (function(lhs, rhs, counts).astype(jnp.float32) ** 2).sum()


def _decode(sizes: Sizes, rounds: int) -> list[Row]:
    """Attention of one token of each sequence to cached latents, against cached keys and values of every head."""
    model, page = sizes.model, 16
    width, heads = model.mla.kv_lora_rank + model.mla.qk_rope_dim, sizes.model.heads
    width = whole_lanes(width) if jax.default_backend() == "tpu" else width
    key_width = model.mla.qk_nope_dim + model.mla.qk_rope_dim
    pages = sizes.context // page
    q, cache, q_head, k, v = attention.random_arrays(
        (
            (SEQUENCES, heads, width),
            (1, SEQUENCES * pages, page, width),
            (SEQUENCES, heads, key_width),
            (SEQUENCES, heads, sizes.context, key_width),
            (SEQUENCES, heads, sizes.context, model.mla.v_dim),
        ),
        sizes.dtype,
    )
    table = jnp.arange(SEQUENCES * pages, dtype=jnp.int32).reshape(SEQUENCES, pages)
    lengths = jnp.full((SEQUENCES,), sizes.context, jnp.int32)
    ours = jax.jit(functools.partial(mla_decode, latent=model.mla.kv_lora_rank, scale=key_width**-0.5))

    @jax.jit
    def expanded(q: Array, k: Array, v: Array) -> Array:
        logits = jnp.einsum("nhw,nhkw->nhk", q, k, preferred_element_type=jnp.float32) * key_width**-0.5
        return jnp.einsum("nhk,nhkv->nhv", jax.nn.softmax(logits).astype(v.dtype), v)

    name = f"mla_decode, {SEQUENCES} sequences, {sizes.context:,} cached tokens, {heads} heads"
    runs = {
        "ours": functools.partial(ours, q, cache, 0, table, lengths),
        "multi-head cache": functools.partial(expanded, q_head, k, v),
    }
    return time_rows(name, runs, rounds)


def _newton_schulz(sizes: Sizes, rounds: int) -> list[Row]:
    """Five steps on a stack of experts' matrices, against batched products that do not exploit symmetry."""
    model = sizes.model
    (x,) = attention.random_arrays(((sizes.experts, model.d_model, model.moe.expert_ffn),), jnp.float32)
    steps = ns.coefficients("muon", 5)
    ours = jax.jit(lambda x: ns.newton_schulz(x, steps))
    plain = jax.jit(functools.partial(_plain_newton_schulz, steps=steps))
    name = f"newton_schulz, {sizes.experts} x {model.d_model} x {model.moe.expert_ffn}"
    return time_rows(name, {"ours": lambda: ours(x), "batched products": lambda: plain(x)}, rounds)


def _plain_newton_schulz(x: Array, steps: ns.Coefficients) -> Array:
    """Newton-Schulz of ``[B, n, m]`` with n at least m, by batched products."""
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    x = (x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + ns.EPSILON)).astype(dtype).swapaxes(1, 2)
    for a, b, c in steps:
        gram_BNN = x @ x.swapaxes(1, 2)
        x = a * x + (b * gram_BNN + c * (gram_BNN @ gram_BNN)) @ x
    return x.swapaxes(1, 2).astype(jnp.float32)
