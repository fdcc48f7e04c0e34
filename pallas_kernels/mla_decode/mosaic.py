"""Attention to a paged latent cache on TPU.

The grid walks the sequences, and within a sequence the blocks of its query rows (when decoding, one block of up to 128
rows: all heads). Each step streams the sequence's pages from HBM, BLOCK_TOKENS at a time, into one of two buffers while
the other is attended to. The first block of the next step is prefetched before a step ends, so only the very first
fetch is waited for. The number of blocks depends on the length alone: the cost of a short sequence is that of its own
tokens, not of its page table.

What is fused: the gather of the pages, logits, running softmax and weighted sum. The fetched latents serve as keys and,
in their first R numbers, as values, so that every cached byte is read once for all heads.

Roofline: a cached token of K2 has 1,152 bytes in bfloat16 and 2 x 64 x (576 + 512) FLOPs: 121 FLOPs per byte, below the
ridge of every TPU (v5p 166, v5e 240, v6e 560), so that HBM bandwidth is the bound. The grid is sequential because of
the prefetch, so on v5p only one of the two cores runs it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.mla_decode.xla import PagedCache, Partial
from pallas_kernels.ops import dot
from pallas_kernels.vma import interpreter, output, vary_together

BLOCK_TOKENS = 512
LARGEST_ROWS = 128
MAX_PAGES = 200_000  # entries of the page table, which lies in 1 MiB of scalar memory
PAGE_MULTIPLE = 8  # the tokens of a page fill whole tiles of memory
LANES = 128
VMEM_LIMIT = 32 << 20


class _RunningSoftmax(NamedTuple):
    """References to the state of a running softmax.

    Attributes:
        peak: float32 ``[Q, LANES]``, largest logit of each query.
        total: float32 ``[Q, LANES]``, sum of the exponentiated logits.
        values: float32 ``[Q, R]``, weighted sum of the values.
    """

    peak: Any
    total: Any
    values: Any


def mla_decode(q: Array, paged: PagedCache, latent: int, scale: float, *, interpret: Any = False) -> Partial:
    """``pallas_kernels.mla_decode.mla_decode`` by the kernel.

    Args:
        q: as in ``mla_decode``.
        paged: the other arrays of ``mla_decode``.
        latent: as in ``mla_decode``.
        scale: as in ``mla_decode``.
        interpret: as in ``pallas_call``.

    Raises:
        ValueError: if the page table is too large, or a page's tokens are not a multiple of PAGE_MULTIPLE.
    """
    layer = jnp.asarray(paged.layer, jnp.int32).reshape(1)
    q, cache, layer, pages, lengths = vary_together(q, paged.latents_LPSW, layer, paged.pages_NM, paged.lengths_N)
    count, queries, width = q.shape
    page_size = cache.shape[2]
    if page_size % PAGE_MULTIPLE or pages.size > MAX_PAGES:
        raise ValueError(
            f"pages must hold a multiple of {PAGE_MULTIPLE} tokens, and a page table at most {MAX_PAGES:,} of them; "
            f"got {page_size} tokens and {pages.shape[0]} x {pages.shape[1]}"
        )
    rows = min(LARGEST_ROWS, math.ceil(queries / 16) * 16)
    q = jnp.pad(q, ((0, 0), (0, -queries % rows), (0, 0)))
    row_blocks = q.shape[1] // rows
    per_block = max(1, min(BLOCK_TOKENS // page_size, pages.shape[1]))
    pages = jnp.pad(pages, ((0, 0), (0, -pages.shape[1] % per_block)))

    def row_block(n: Array, block: Array, *scalars: Any) -> tuple[Any, ...]:
        return n, block, 0

    out, lse = pl.pallas_call(
        functools.partial(_kernel, per_block=per_block, latent=latent, scale=scale),
        out_shape=[
            output((*q.shape[:2], latent), jnp.float32, q),
            output((*q.shape[:2], LANES), jnp.float32, q),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count, row_blocks),
            in_specs=[pl.BlockSpec((1, rows, width), row_block), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=[pl.BlockSpec((1, rows, latent), row_block), pl.BlockSpec((1, rows, LANES), row_block)],
            scratch_shapes=[
                pltpu.VMEM((2, per_block * page_size, width), cache.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SMEM((1,), jnp.int32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, latent), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_LIMIT
        ),
        cost_estimate=cost(count, queries, width, latent, pages.shape[1] * page_size, cache.dtype.itemsize),
        interpret=interpreter(interpret, q),
        name="mla_decode",
    )(layer, pages, lengths, q, cache)
    return Partial(out[:, :queries], lse[:, :queries, 0])


def cost(count: int, queries: int, width: int, latent: int, context: int, itemsize: int) -> pl.CostEstimate:
    """Cost of a call in which every sequence has ``context`` cached tokens."""
    row_blocks = math.ceil(queries / LARGEST_ROWS)
    return pl.CostEstimate(
        flops=2 * count * queries * context * (width + latent),
        bytes_accessed=count * (row_blocks * context * width * itemsize + queries * (width * itemsize + 4 * latent)),
        transcendentals=count * queries * context,
    )


def _kernel(
    layer, pages, lengths, q, cache, out, lse, buffer, arrived, parity, peak, total, values, *, per_block, latent, scale
):  # fmt: skip
    n, rows_block = pl.program_id(0), pl.program_id(1)
    page_size = cache.shape[2]
    block_tokens = per_block * page_size

    def pages_of(sequence):
        # An empty sequence counts as one page, so that every step has a block to wait for.
        return jnp.maximum(pl.cdiv(lengths[sequence], page_size), 1)

    def each_page(sequence, block, slot, act):
        """Starts or awaits the copies of a block's pages."""
        first = block * per_block

        def copy_page(i, _):
            page = cache.at[layer[0], pages[sequence, first + i]]
            target = buffer.at[slot, pl.ds(pl.multiple_of(i * page_size, page_size), page_size)]
            act(pltpu.make_async_copy(page, target, arrived.at[slot]))
            return 0

        lax.fori_loop(0, jnp.minimum(per_block, pages_of(sequence) - first), copy_page, 0)

    @pl.when((n == 0) & (rows_block == 0))
    def _():
        parity[0] = 0
        each_page(0, 0, 0, lambda copy: copy.start())

    peak[...] = jnp.full_like(peak, -jnp.inf)
    total[...] = jnp.zeros_like(total)
    values[...] = jnp.zeros_like(values)
    blocks = pl.cdiv(pages_of(n), per_block)

    def attend(block, _):
        slot = parity[0]
        is_last = block + 1 == blocks
        next_sequence = jnp.where(is_last & (rows_block + 1 == pl.num_programs(1)), n + 1, n)

        @pl.when(next_sequence < pl.num_programs(0))
        def _():
            each_page(next_sequence, jnp.where(is_last, 0, block + 1), 1 - slot, lambda copy: copy.start())

        each_page(n, block, slot, lambda copy: copy.wait())
        left = lengths[n] - block * block_tokens
        _attend_block(q[0], buffer[slot], left, _RunningSoftmax(peak, total, values), latent, scale)
        parity[0] = 1 - slot
        return 0

    lax.fori_loop(0, blocks, attend, 0)
    out[0] = values[...] / jnp.maximum(total[:, :1], 1e-30)
    lse[0] = jnp.where(total[...] == 0.0, -jnp.inf, peak[...] + jnp.log(total[...]))


def _attend_block(q_QW, kv_TW, left, running: _RunningSoftmax, latent: int, scale: float):
    """Adds a block of tokens to the running softmax; only the first ``left`` of them are tokens of the sequence."""
    peak, total, values = running
    # Rows to which no page was copied may hold NaN, which a weight of 0 would not remove.
    kv_TW = jnp.where(lax.broadcasted_iota(jnp.int32, kv_TW.shape, 0) < left, kv_TW, 0)
    logits_QT = scale * dot(q_QW, kv_TW, (1, 1))
    logits_QT = jnp.where(lax.broadcasted_iota(jnp.int32, logits_QT.shape, 1) < left, logits_QT, -jnp.inf)
    old_peak_Q1 = peak[:, :1]
    new_peak_Q1 = jnp.maximum(old_peak_Q1, logits_QT.max(1, keepdims=True))
    finite_Q1 = jnp.where(new_peak_Q1 == -jnp.inf, 0.0, new_peak_Q1)
    weights_QT = jnp.exp(logits_QT - finite_Q1)
    kept_Q1 = jnp.exp(old_peak_Q1 - finite_Q1)
    values[...] = kept_Q1 * values[...] + dot(weights_QT.astype(kv_TW.dtype), kv_TW[:, :latent])
    total[...] = kept_Q1 * total[...] + weights_QT.sum(1, keepdims=True)
    peak[...] = jnp.broadcast_to(new_peak_Q1, peak.shape)
