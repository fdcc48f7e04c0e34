"""Ragged all-to-all of rows by remote DMA: each rank writes its rows straight into its peers' memory.

Tiling: rows lie in HBM in groups of 16, as `[N / 16, 16, D]`: a group is whole tiles of bfloat16 or float32, and groups
are the untiled dimension, so a range of them is one contiguous piece wherever it starts. A range of g groups travels in
pieces of 16 groups (3.7 MB at D = 7168 in bfloat16, next to which the cost of issuing a DMA is nothing), and what is
left in up to three of 4 and three of 1: three static sizes, and at most 15 rows more than there are.

Nothing is computed and nothing passes through VMEM: the core only issues copies, HBM to a peer's HBM, all of them
before it waits for any. Peers are visited in the order of their distance, so that the ranks start on different peers.
The kernel holds its core until all rows have arrived: XLA runs nothing beside it.

A rank may write to a peer only after that peer has entered the kernel (its output is then allocated and its semaphores
are zero): each rank tells all others, and waits for all, at a barrier semaphore. Sizes are known on both sides before.

Roofline: no FLOPs; the bound is the link. Each row is read once from HBM and written once to the peer's HBM, so HBM is
busy for 2 of its bytes against 1 on the link, whose bandwidth is far lower (v5e 0.2 TB/s against 0.82, v5p 0.6
against 2.77, v6e 0.45 against 1.64, tpu7x 1.2 against 7.4, all links of a chip together).
"""

from __future__ import annotations

from functools import partial

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from pallas_kernels.expert_exchange.plan import ROW_GROUP
from pallas_kernels.varying import output

# Groups of one DMA, a static size.
PIECES = (16, 4, 1)
# Its own number among the kernels of a program that communicate: the barrier semaphores of two must not be mixed up.
COLLECTIVE_ID = 19


def exchange_rows(
    rows: jax.Array,
    out_rows: int,
    send_start: jax.Array,
    send_count: jax.Array,
    write_start: jax.Array,
    receive_count: jax.Array,
    *,
    axis_name: str,
    interpret: bool | pltpu.InterpretParams = False,
) -> jax.Array:
    """Write rows `[send_start[p], send_start[p] + send_count[p])` to rows `write_start[p]` and on of peer p.

    Counts are rounded up to groups of 16 rows. To be called inside a shard_map over `axis_name`, of P ranks, on which
    `receive_count[p]` equals peer p's `send_count` for this rank. Not differentiable: the transpose is the same call
    with the roles of the arguments exchanged.

    Args:
        rows: [N, D], N a multiple of 16.
        out_rows: M, a multiple of 16.
        send_start: int32 [P], multiples of 16.
        send_count: int32 [P].
        write_start: int32 [P], multiples of 16.
        receive_count: int32 [P].
        axis_name: the mesh axis of the ranks.
        interpret: False for a TPU, or the parameters of the interpreter, which needs a shard_map without `check_vma`.

    Returns:
        [M, D]; rows that nobody wrote hold anything.

    Raises:
        ValueError: if N or M is not a multiple of 16.
    """
    if rows.shape[0] % ROW_GROUP or out_rows % ROW_GROUP:
        raise ValueError(f"rows come in groups of {ROW_GROUP}, not {rows.shape[0]} and {out_rows}")
    ranks, width = send_start.size, rows.shape[1]
    groups_4P = -(-jnp.stack([send_start, send_count, write_start, receive_count]) // ROW_GROUP)
    shape = out_rows // ROW_GROUP, ROW_GROUP, width
    out_G16D = pl.pallas_call(
        partial(_kernel, axis_name=axis_name, ranks=ranks),
        out_shape=output(shape, rows.dtype, rows),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
        # One of each for a peer: a semaphore counts bytes, and all rows together may be more than it can count.
        scratch_shapes=[pltpu.SemaphoreType.DMA((ranks,)), pltpu.SemaphoreType.DMA((ranks,))],
        compiler_params=pltpu.CompilerParams(collective_id=COLLECTIVE_ID, has_side_effects=True),
        cost_estimate=exchange_cost(rows.shape[0], width, rows.dtype.itemsize),
        name="expert_exchange",
        interpret=interpret,
    )(groups_4P, rows.reshape(-1, ROW_GROUP, width))
    return out_G16D.reshape(out_rows, width)


def exchange_cost(rows: int, width: int, itemsize: int) -> pl.CostEstimate:
    """Count what sending `rows` rows costs: each is read on one rank and written on another."""
    size = rows * width * itemsize
    return pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=2 * size, remote_bytes_transferred=size)


def _kernel(groups_4P, rows_G16D, out_G16D, sent_P, received_P, *, axis_name, ranks):
    me = lax.axis_index(axis_name)

    def copy(peer, sender, first, write, groups):
        """The DMA of some groups to a peer: `sender` is the rank whose rows the receiving semaphore counts."""
        return pltpu.make_async_remote_copy(
            rows_G16D.at[pl.ds(first, groups)],
            out_G16D.at[pl.ds(write, groups)],
            sent_P.at[peer],
            received_P.at[sender],
            device_id={axis_name: peer},
            device_id_type=pl.DeviceIdType.MESH,
        )

    def send(distance, _):
        peer = lax.rem(me + distance, ranks)
        first, write = groups_4P[0, peer], groups_4P[2, peer]
        _pieces(groups_4P[1, peer], lambda at, size: copy(peer, me, first + at, write + at, size).start())

    def wait(distance, _):
        peer = lax.rem(me + distance, ranks)
        _pieces(groups_4P[1, peer], lambda at, size: copy(peer, me, 0, 0, size).wait_send())
        sender = lax.rem(me - distance + ranks, ranks)
        _pieces(groups_4P[3, sender], lambda at, size: copy(me, sender, 0, 0, size).wait_recv())

    _barrier(axis_name, me, ranks)
    lax.fori_loop(0, ranks, send, None)
    lax.fori_loop(0, ranks, wait, None)


def _pieces(groups, body):
    """Call `body(first group, groups)` for each piece of a range of groups, the large ones first."""
    done = 0
    for size in PIECES:
        count = (groups - done) // size
        lax.fori_loop(0, count, lambda i, _, size=size, done=done: body(done + i * size, size), None)
        done += count * size


def _barrier(axis_name, me, ranks):
    """Return when all ranks have entered the kernel."""
    semaphore = pltpu.get_barrier_semaphore()

    def signal(distance, _):
        peer = lax.rem(me + distance, ranks)
        pl.semaphore_signal(semaphore, 1, device_id={axis_name: peer}, device_id_type=pl.DeviceIdType.MESH)

    lax.fori_loop(1, ranks, signal, None)
    pl.semaphore_wait(semaphore, ranks - 1)
