"""Every kernel against what one would use without it, forward and backward where it has a gradient.

On a CPU the sizes are nano's in float32, on an accelerator those of one Kimi K2 layer, cut to fit, in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from importlib.util import find_spec
import sys
from typing import Any, NamedTuple

import jax
from jax import Array, lax
import jax.numpy as jnp
import numpy as np

from k2jax.bench import attention, experts
from k2jax.bench.timing import Row, interleaved, time_row
from k2jax.config import ModelConfig, model_preset
from k2jax.train.report import device_name
from pallas_kernels import newton_schulz as ns
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.mla_attention import mla_attention
from pallas_kernels.mla_decode import mla_decode


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        model: widths.
        dtype: of everything but the optimizer.
        heads: of attention.
        sequences: (batch, tokens) of attention.
        path: tokens from the root of the tree to a leaf.
        tokens: that are routed.
        experts: of one device.
        context: cached tokens of each decoded sequence.
    """

    model: ModelConfig
    dtype: Any
    heads: int
    sequences: tuple[tuple[int, int], ...]
    path: int
    tokens: int
    experts: int
    context: int


BRANCHES, SHARED = 8, 0.75  # of the tree: leaves, and the share of a path that all of them have in common
SEQUENCES = 16  # decoded at a time


def measure(rounds: int = 10) -> list[Row]:
    """A row for each kernel and baseline that runs here; what does not is named on the error output."""
    sizes = sizes_here()
    rows = [row for batch, length in sizes.sequences for row in _attention(sizes, batch, length, rounds)]
    rows += [_tree(sizes, rounds), *_experts(sizes, rounds), *_grouped(sizes, rounds)]
    return [*rows, _decode(sizes, rounds), _newton_schulz(sizes, rounds)]


def sizes_here() -> Sizes:
    """Sizes that suit the default device."""
    if jax.default_backend() == "cpu":
        nano = model_preset("nano")
        return Sizes(nano, jnp.float32, nano.heads, ((8, 256), (1, 2048)), 1024, 2048, nano.experts, 1024)
    k2 = model_preset("k2")
    return Sizes(k2, jnp.bfloat16, k2.heads, ((1, 4096),), 4096, 4096, 64, 8192)


def _attention(sizes: Sizes, batch: int, length: int, rounds: int) -> list[Row]:
    arrays = _attention_inputs(sizes, batch, length)
    candidates = {
        "ours": attention.gradients(attention.ours),
        "dense scores": attention.gradients(attention.dense),
        "jax.nn.dot_product_attention": attention.gradients(_dot_product_attention),
    }
    seconds = interleaved({name: functools.partial(f, *arrays) for name, f in candidates.items()}, rounds)
    name = f"mla_attention, forward + backward, {batch} x {length:,}, {sizes.heads} heads"
    return [time_row(name, seconds["ours"], seconds[other], other, device_name()) for other in list(candidates)[1:]]


def _attention_inputs(sizes: Sizes, batch: int, length: int) -> tuple[Array, ...]:
    model, per_head = sizes.model, (batch, sizes.heads, length)
    shapes = (
        (*per_head, model.qk_nope_dim),
        (*per_head, model.qk_rope_dim),
        (*per_head, model.qk_nope_dim),
        (batch, length, model.qk_rope_dim),
        (*per_head, model.v_dim),
    )
    return _normal(shapes, sizes.dtype)


def _dot_product_attention(q_nope: Array, q_rope: Array, k_nope: Array, k_rope: Array, v: Array) -> tuple[Array, Array]:
    """The rope key copied to all heads, and values as wide as the keys, as it asks for; it has no maximum logit."""
    q = jnp.concatenate([q_nope, q_rope], -1)
    k = jnp.concatenate([k_nope, jnp.broadcast_to(k_rope[:, None], q_rope.shape)], -1)
    room = q.shape[-1] - v.shape[-1]
    wide = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, room)))
    out = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, wide)), is_causal=True)
    return out.swapaxes(1, 2)[..., : v.shape[-1]], jnp.zeros(q.shape[1])


def _tree(sizes: Sizes, rounds: int) -> Row:
    """A trajectory tree in one pass against each of its paths by itself."""
    shared = int(SHARED * sizes.path)
    exits = tree_exits(shared, sizes.path - shared, BRANCHES)
    tree = _attention_inputs(sizes, 1, len(exits))
    paths = _attention_inputs(sizes, BRANCHES, sizes.path)
    run = _tree_gradients(jnp.asarray(exits)[None])
    seconds = interleaved(
        {
            "tree": functools.partial(run, *tree),
            "paths": functools.partial(attention.gradients(attention.ours), *paths),
        },
        rounds,
    )
    saved = pairs_saved(exits, sizes.path)
    name = f"mla_attention, tree of {BRANCHES} x {sizes.path:,}, {SHARED:.0%} shared, {saved:.2f} x fewer pairs"
    return time_row(name, seconds["tree"], seconds["paths"], "separate paths", device_name())


def tree_exits(shared: int, branch: int, branches: int) -> np.ndarray:
    """The exit vector of a shared prefix with leaves of ``branch`` tokens, flattened depth first."""
    length = shared + branches * branch
    ends = shared + branch * (1 + np.arange(branches))
    return np.concatenate([np.full(shared, length), np.repeat(ends, branch)]).astype(np.int32)


def pairs_saved(exits: np.ndarray, path: int) -> float:
    """Visible pairs of the separate paths over those of the tree."""
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
    """Only where ``grouped_matmul`` is not ``lax.ragged_dot`` itself."""
    if jax.default_backend() != "tpu":
        print(f"not run: grouped_matmul is lax.ragged_dot itself on a {jax.default_backend()}", file=sys.stderr)
        return []
    rows, width, hidden = sizes.tokens * sizes.model.active_experts, sizes.model.d_model, sizes.model.expert_ffn
    lhs, rhs = _normal(((rows, width), (sizes.experts, width, hidden)), sizes.dtype)
    counts = jnp.full((sizes.experts,), rows // sizes.experts, jnp.int32)
    candidates = {"ours": grouped_matmul, "lax.ragged_dot": lax.ragged_dot} | _optional()
    both = {name: jax.jit(jax.grad(_squares(f), argnums=(0, 1))) for name, f in candidates.items()}
    seconds = interleaved({name: functools.partial(f, lhs, rhs, counts) for name, f in both.items()}, rounds)
    name = f"grouped_matmul, forward + backward, {rows:,} rows, {sizes.experts} groups"
    return [time_row(name, seconds["ours"], seconds[other], other, device_name()) for other in list(both)[1:]]


def _optional() -> dict[str, Callable[..., Array]]:
    """Other libraries' grouped products, where they are installed and run."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    found = {"megablox": gmm}
    if find_spec("tokamax"):
        import tokamax

        found["tokamax"] = tokamax.ragged_dot
    else:
        print("not run: tokamax is not installed", file=sys.stderr)
    return found


def _squares(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda lhs, rhs, counts: (function(lhs, rhs, counts).astype(jnp.float32) ** 2).sum()


def _decode(sizes: Sizes, rounds: int) -> Row:
    """One token of each sequence over its cached latents, against the keys and values of every head in the cache."""
    model, page = sizes.model, 16
    width, heads = model.kv_lora_rank + model.qk_rope_dim, sizes.heads
    width += -width % 128 if jax.default_backend() == "tpu" else 0
    key_width = model.qk_nope_dim + model.qk_rope_dim
    pages = sizes.context // page
    q, cache, q_head, k, v = _normal(
        (
            (SEQUENCES, heads, width),
            (1, SEQUENCES * pages, page, width),
            (SEQUENCES, heads, key_width),
            (SEQUENCES, heads, sizes.context, key_width),
            (SEQUENCES, heads, sizes.context, model.v_dim),
        ),
        sizes.dtype,
    )
    table = jnp.arange(SEQUENCES * pages, dtype=jnp.int32).reshape(SEQUENCES, pages)
    lengths = jnp.full((SEQUENCES,), sizes.context, jnp.int32)
    ours = jax.jit(functools.partial(mla_decode, latent=model.kv_lora_rank, scale=key_width**-0.5))

    @jax.jit
    def expanded(q: Array, k: Array, v: Array) -> Array:
        logits = jnp.einsum("nhw,nhkw->nhk", q, k, preferred_element_type=jnp.float32) * key_width**-0.5
        return jnp.einsum("nhk,nhkv->nhv", jax.nn.softmax(logits).astype(v.dtype), v)

    seconds = interleaved(
        {
            "ours": functools.partial(ours, q, cache, 0, table, lengths),
            "expanded": functools.partial(expanded, q_head, k, v),
        },
        rounds,
    )
    name = f"mla_decode, {SEQUENCES} sequences, {sizes.context:,} cached tokens, {heads} heads"
    return time_row(name, seconds["ours"], seconds["expanded"], "multi-head cache", device_name())


def _newton_schulz(sizes: Sizes, rounds: int) -> Row:
    """A stack of experts' matrices, five steps, against batched products without any of the kernel's symmetry."""
    model = sizes.model
    (x,) = _normal(((sizes.experts, model.d_model, model.expert_ffn),), jnp.float32)
    steps = ns.coefficients("muon", 5)
    ours = jax.jit(lambda x: ns.newton_schulz(x, steps))
    plain = jax.jit(functools.partial(_plain_newton_schulz, steps=steps))
    seconds = interleaved({"ours": lambda: ours(x), "plain": lambda: plain(x)}, rounds)
    name = f"newton_schulz, {sizes.experts} x {model.d_model} x {model.expert_ffn}"
    return time_row(name, seconds["ours"], seconds["plain"], "batched products", device_name())


def _plain_newton_schulz(x: Array, steps: ns.Coefficients) -> Array:
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    x = (x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + ns.EPSILON)).astype(dtype).swapaxes(1, 2)
    for a, b, c in steps:
        gram = x @ x.swapaxes(1, 2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.swapaxes(1, 2).astype(jnp.float32)


def _normal(shapes: tuple[tuple[int, ...], ...], dtype: Any) -> tuple[Array, ...]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
