"""What smaller parts of the experts' exchange cost their kernels: rows per expert, tiles, and a lower bound of time."""

from __future__ import annotations

from k2jax.aot.cost.expert_rows import expert_tiles
from k2jax.aot.cost.layer_costs import Cost, matrix_costs
from k2jax.aot.kernel_cases import K2, RANKS, TOKENS
from k2jax.aot.topology import chip_of
from k2jax.config.schema import Config, ParallelConfig
from k2jax.report.table import percent, significant, text_table

PARTS = (1, 2, 4, 8, 16)


def expert_parts_table(topologies: list[str]) -> str:
    """The forward products of a layer's experts on one device of Kimi K2's reference layout, by number of parts."""
    header = ("parts", "rows an expert", "computed", "more FLOPs", "row tiles", "TFLOP", "GB", *topologies)
    rows = []
    for parts in PARTS:
        config = Config(model=K2, parallel=ParallelConfig(expert=RANKS, expert_chunks=parts))
        tiles = expert_tiles(config, TOKENS, RANKS)
        products = matrix_costs(config, "moe", TOKENS, RANKS)
        cost = sum((cost for name, cost in products.items() if name.startswith("experts/")), Cost())
        bounds = [1e3 * max(chip_of(topology).seconds(*cost)) for topology in topologies]
        numbers = (tiles.visits, cost.flops / 1e12, cost.bytes / 1e9, *bounds)
        sizes = (significant(tiles.rows), significant(tiles.computed), percent(tiles.computed / tiles.rows - 1))
        rows.append((parts, *sizes, *map(significant, numbers)))
    title = f"routed experts, forward, by parts of the exchange: {TOKENS:,} tokens a rank, roofline ms"
    return f"{title}\n{text_table(header, rows)}"
