"""Expert parallelism: sends tokens to the ranks that own their experts, and the experts' results back.

Inside a ``shard_map`` over an axis of P ranks, of which each owns E / P consecutive experts:

    received, route = expert_dispatch(x, expert_ids, gates, experts=E, axis_name="expert")
    y = expert_combine(routed_experts(received.x, w13, w2, received.expert_ids, received.gates), route)

``expert_parallel`` does this in chunks. A token is sent once to each rank that owns one of its experts, not once for
each expert (8 of 384 experts over 16 ranks: 6.5 rows instead of 8). Its experts on that rank are summed there, and the
ranks' sums are added in float32 on the rank of the token. No token is dropped unless ``slots`` limits the rows, and
dropped rows are counted.

| backend | rows sent in each direction | collective | runs on |
| --- | --- | --- | --- |
| ``dense`` | all tokens to all ranks; results in float32 | all_gather, psum_scatter | any backend |
| ``a2a`` | ``slots`` for each pair of ranks, used or not | all_to_all | any backend |
| ``ragged`` | the rows in use | ragged_all_to_all | TPU (XLA:CPU lacks it) |
| ``dma`` | the rows in use, in groups of 16 | remote DMA in a Pallas kernel | TPU; interpreter |

``dense`` needs no plan, and serves as the reference for the others.
"""

from pallas_kernels.expert_exchange.dma import exchange_cost
from pallas_kernels.expert_exchange.exchange import Received, expert_combine, expert_dispatch
from pallas_kernels.expert_exchange.parallel import expert_parallel
from pallas_kernels.expert_exchange.route import Route

__all__ = [
    "Received",
    "Route",
    "exchange_cost",
    "expert_combine",
    "expert_dispatch",
    "expert_parallel",
]
