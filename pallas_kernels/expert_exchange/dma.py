"""Ragged all-to-all of rows by remote DMA: each rank writes its rows straight into its peers' memory.

Tiling: rows lie in HBM in groups of 16, as ``[N / 16, 16, D]``. A group consists of whole tiles of bfloat16 or float32,
and the groups are an untiled dimension, so any range of groups is contiguous in memory. A range travels in pieces of 16
groups (3.7 MB at D = 7168 in bfloat16, for which the cost of issuing a DMA is negligible); the remainder travels in up
to three pieces of 4 groups and three of 1. There are three static sizes, and at most 15 rows are sent in excess.

The kernel computes nothing and passes nothing through VMEM: the core issues all copies from HBM to the peers' HBM
before it waits for any of them. Each rank visits its peers in the order of their distance, so that ranks start with
different peers. The kernel occupies its core until all rows have arrived: XLA overlaps nothing with it.

A rank may write to a peer only after that peer has entered the kernel, when its output is allocated and its semaphores
are zero. Therefore every rank signals all others, and waits for all of them, at a barrier semaphore. Both sides know
the sizes of all ranges beforehand.

Roofline: no FLOPs; the bound is the link. Each row is read once from HBM and written once to the peer's HBM, so that
    HBM
moves 2 bytes for each byte on the link, whose bandwidth is far lower (v5e 0.2 TB/s against 0.82, v5p 0.6 against 2.77,
v6e 0.45 against 1.64, tpu7x 1.2 against 7.4, all links of a chip together).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.expert_exchange.plan import ROW_GROUP
from pallas_kernels.vma import output

# Groups of rows that one DMA moves; the sizes of DMAs are static.
PIECES = (16, 4, 1)
# Identifies the barrier semaphore: kernels of one program that communicate need different numbers.
COLLECTIVE_ID = 19


class RowRanges(NamedTuple):
    """Ranges of rows that a rank exchanges with each of P peers; int32 ``[P]`` each.

    Attributes:
        send_start_P: first row for peer p in this rank's buffer.
        send_count_P: number of rows for peer p.
        write_start_P: first row in peer p's output that this rank writes.
        receive_count_P: number of rows from peer p, equal to that peer's ``send_count_P`` for this rank.
    """

    send_start_P: jax.Array
    send_count_P: jax.Array
    write_start_P: jax.Array
    receive_count_P: jax.Array


def exchange_rows(
    rows_ND: jax.Array,
    out_rows: int,
    ranges: RowRanges,
    *,
    axis_name: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> jax.Array:
    """Writes ranges of this rank's rows into the outputs of its peers; inside a ``shard_map`` over ``axis_name``.

    Counts are rounded up to groups of 16 rows. Not differentiable: the transpose is the same call with the roles of the
    ranges exchanged.

    Args:
        rows_ND: ``[N, D]``, N a multiple of 16; float32 or bfloat16.
        out_rows: M, a multiple of 16.
        ranges: the ranges to send and to receive; all starts are multiples of 16.
        axis_name: mesh axis of the ranks.
        interpret: False on a TPU, or the parameters of the interpreter, which needs a ``shard_map`` without
            ``check_vma``.

    Returns:
        ``[M, D]``; rows that no rank wrote hold arbitrary values.

    Raises:
        ValueError: if N or M is not a multiple of 16.
    """
    if rows_ND.shape[0] % ROW_GROUP or out_rows % ROW_GROUP:
        raise ValueError(f"numbers of rows must be multiples of {ROW_GROUP}, not {rows_ND.shape[0]} and {out_rows}")
    ranks, width = ranges.send_start_P.size, rows_ND.shape[1]
    groups_4P = -(-jnp.stack(ranges) // ROW_GROUP)
    shape = out_rows // ROW_GROUP, ROW_GROUP, width
    out_G16D = pl.pallas_call(
        partial(_kernel, axis_name=axis_name, ranks=ranks),
        out_shape=output(shape, rows_ND.dtype, rows_ND),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        # Two semaphores for each peer: they count bytes, and one could overflow with the rows of all peers.
        scratch_shapes=[pltpu.SemaphoreType.DMA((ranks,)), pltpu.SemaphoreType.DMA((ranks,))],
        compiler_params=pltpu.CompilerParams(collective_id=COLLECTIVE_ID, has_side_effects=True),
        cost_estimate=exchange_cost(rows_ND.shape[0], width, rows_ND.dtype.itemsize),
        name="expert_exchange",
        interpret=interpret,
    )(groups_4P, rows_ND.reshape(-1, ROW_GROUP, width))
    return out_G16D.reshape(out_rows, width)


def exchange_cost(rows: int, width: int, itemsize: int) -> pl.CostEstimate:
    """Cost of sending ``rows`` rows, each of which is read on one rank and written on another."""
    size = rows * width * itemsize
    return pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=2 * size, remote_bytes_transferred=size)


def _kernel(groups_4P, rows_G16D, out_G16D, sent_P, received_P, *, axis_name, ranks):
    rank = lax.axis_index(axis_name)

    def copy(peer, sender, first, write, groups):
        """DMA of ``groups`` groups to a peer; the receiving semaphore counts the rows of ``sender``."""
        return pltpu.make_async_remote_copy(
            rows_G16D.at[pl.ds(first, groups)],
            out_G16D.at[pl.ds(write, groups)],
            sent_P.at[peer],
            received_P.at[sender],
            device_id={axis_name: peer},
            device_id_type=pl.DeviceIdType.MESH,
        )

    def send(distance, _):
        peer = lax.rem(rank + distance, ranks)
        first, write = groups_4P[0, peer], groups_4P[2, peer]
        _pieces(groups_4P[1, peer], lambda offset, size: copy(peer, rank, first + offset, write + offset, size).start())

    def wait(distance, _):
        peer = lax.rem(rank + distance, ranks)
        _pieces(groups_4P[1, peer], lambda _, size: copy(peer, rank, 0, 0, size).wait_send())
        sender = lax.rem(rank - distance + ranks, ranks)
        _pieces(groups_4P[3, sender], lambda _, size: copy(rank, sender, 0, 0, size).wait_recv())

    _barrier(axis_name, rank, ranks)
    lax.fori_loop(0, ranks, send, None)
    lax.fori_loop(0, ranks, wait, None)


def _pieces(groups, body):
    """Calls ``body(offset, size)`` for each piece of a range of ``groups`` groups, the largest pieces first."""
    done = 0
    for size in PIECES:
        count = (groups - done) // size
        lax.fori_loop(0, count, lambda i, _, size=size, done=done: body(done + i * size, size), None)
        done += count * size


def _barrier(axis_name, rank, ranks):
    """Returns when all ranks have entered the kernel."""
    semaphore = pltpu.get_barrier_semaphore()

    def signal(distance, _):
        peer = lax.rem(rank + distance, ranks)
        pl.semaphore_signal(semaphore, 1, device_id={axis_name: peer}, device_id_type=pl.DeviceIdType.MESH)

    lax.fori_loop(1, ranks, signal, None)
    pl.semaphore_wait(semaphore, ranks - 1)
