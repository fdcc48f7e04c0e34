"""Expert parallelism: tokens travel to the ranks that own their experts, and what the experts make of them back.

Inside a shard_map over an axis of P ranks, of which each owns E / P consecutive experts:

    received, route = expert_dispatch(x, expert_ids, gates, experts=E, axis_name="expert")
    y = expert_combine(routed_experts(received.x, w13, w2, received.expert_ids, received.gates), route)

which is what `expert_parallel` does, in chunks. A token goes once to each rank that owns one of its experts, not once
for each expert (8 of 384 experts over 16 ranks: 6.5 rows instead of 8), is summed there over that rank's experts, and
over ranks in float32 where it came from. Nothing is dropped unless `slots` limits rows, and what is dropped is counted.

| backend | rows on the wire, each way | collective | runs on |
| --- | --- | --- | --- |
| `dense` | all tokens to all ranks; back in float32 | all_gather, psum_scatter | anything |
| `ring` | the same, to the neighbour only | P - 1 ppermutes | anything |
| `a2a` | `slots` for each pair of ranks, used or not | all_to_all | anything |
| `ragged` | those there are | ragged_all_to_all | TPU (XLA:CPU lacks it) |
| `dma` | those there are, in groups of 16 | remote DMA in a Pallas kernel | TPU; interpreter |
"""

from pallas_kernels.expert_exchange.dma import exchange_cost
from pallas_kernels.expert_exchange.exchange import Received, expert_combine, expert_dispatch
from pallas_kernels.expert_exchange.parallel import expert_parallel
from pallas_kernels.expert_exchange.route import Route
from pallas_kernels.expert_exchange.wire import WireBytes, exchanged_bytes

__all__ = [
    "Received",
    "Route",
    "WireBytes",
    "exchange_cost",
    "exchanged_bytes",
    "expert_combine",
    "expert_dispatch",
    "expert_parallel",
]
