"""What a pipeline would hold and save if residuals of a chunk stayed from its forward to its backward tick.

The pipeline keeps a chunk's input alone, and its backward tick runs the chunk forward again. A residual that is kept
takes its bytes in every slot that lives at a time, and spares the re-run the product, the attention or the exchange
that makes it. Bytes come from the declared table of activations, slots from the schedule, seconds from ``roofline``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from k2jax.aot.cost.activations import ATTENTION, PRODUCERS, activation_sizes, keeping
from k2jax.aot.cost.estimate import SETTLED, Estimator, Placement
from k2jax.aot.cost.expert_rows import expert_buffers, mean_owners
from k2jax.aot.cost.layer_costs import layer_cost
from k2jax.aot.cost.roofline import device_seconds
from k2jax.config.activations import LISTS, present
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.parallel.schedule import build_pipeline_schedule

DISPATCH = ("expert_input", "expert_ids", "expert_plan")  # what the exchange of tokens gives, and where it lies


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkResidual:
    """One residual, or the few that are of use together; of one device.

    Attributes:
        names: of the table of activations.
        chunk_bytes: of a chunk and micro-batch, in FP8 where that is supported, with the room that buffers have.
        mean_bytes: the same with the mean number of routed rows instead of the room.
        slots: chunks' residuals that live at a time.
        flops: that a step's re-runs are spared.
        compute: the same as time [s].
        exchanged: bytes that a step's re-runs do not send.
        exchange: the same as time, hidden or not [s].
    """

    names: tuple[str, ...]
    chunk_bytes: float
    mean_bytes: float
    slots: int
    flops: float
    compute: float
    exchanged: float
    exchange: float

    @property
    def per_byte(self) -> float:
        """Seconds spared for each byte of a chunk."""
        return (self.compute + self.exchange) / max(self.chunk_bytes, 1.0)


class ChunkResiduals(NamedTuple):
    """All that a pipeline could keep of a chunk.

    Attributes:
        unread: FLOPs of a step's re-runs whose results no backward reads, the down projections.
        unread_seconds: the same as time [s].
        residuals: those that spare something, the most seconds for a byte first.
        tick: seconds of a tick with a forward and a backward.
    """

    unread: float
    unread_seconds: float
    residuals: list[ChunkResidual]
    tick: float


def live_slots(schedule: Any) -> int:
    """Residuals that a stage holds at a time, from the tick of a chunk's forward to that of its backward."""
    forward, backward = ((schedule.table[name] >= 0).cumsum(0) for name in ("forward", "backward"))
    finished = np.concatenate([np.zeros((1, schedule.stages), backward.dtype), backward[:-1]])
    return int((forward - finished).max())


def chunk_residuals(config: Config, placement: Placement) -> ChunkResiduals:
    """What each residual of the config's chunks takes and spares, where the step keeps none yet.

    Raises:
        UserError: the config has no pipeline of expert layers that recomputes its chunks.
    """
    estimator = Estimator(config, placement)
    if estimator.stages == 1 or estimator.layout.layer_group != "moe" or config.parallel.executor != "1f1b":
        raise UserError("--residuals is of a pipeline of expert layers: set config.parallel.stage and executor=1f1b")
    count = min(config.train.micro_batches, SETTLED * estimator.stages)
    shape = (estimator.stages, config.parallel.virtual_stages, estimator.layout.chunks, count)
    slots, chip, layers = live_slots(build_pipeline_schedule(*shape)), estimator.chip, estimator.layout.chunk_layers
    stored = tuple(a.name for a in present(config.model, "moe") if a.fp8)
    sizes = activation_sizes(keeping(config, (), stored), "moe", estimator.tokens, estimator.ranks)
    shares, passes = _mean_shares(config, estimator), estimator.ticks * layers
    again, (sent, sending) = _recomputed(config, estimator, ()), _dispatch(config, placement)
    found = []
    for names in _groups(sizes):
        spared = passes * (again - _recomputed(config, estimator, names))
        found.append(
            ChunkResidual(
                names=names,
                chunk_bytes=layers * sum(sizes[name] for name in names),
                mean_bytes=layers * sum(sizes[name] * shares.get(name, 1.0) for name in names),
                slots=slots,
                flops=spared,
                compute=device_seconds(chip, spared, 0.0)[0],
                exchanged=sent * (names == DISPATCH),
                exchange=sending * (names == DISPATCH),
            )
        )
    found.sort(key=lambda one: -one.per_byte)
    unread = passes * (layer_cost(config, "moe", estimator.tokens, estimator.ranks).forward.flops - again)
    steady = max(estimator.work(), key=lambda work: work.times * work.flops)
    tick = max(device_seconds(chip, steady.flops, steady.bytes))
    return ChunkResiduals(unread, device_seconds(chip, unread, 0.0)[0], found, tick)


def _groups(sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """Names that are of use together: attention's two results, what an exchange gives, and every other product."""
    return [ATTENTION, DISPATCH, *((name,) for name in sizes if name in PRODUCERS)]


def _recomputed(config: Config, estimator: Estimator, names: tuple[str, ...]) -> float:
    """FLOPs of one layer and micro-batch that are computed again where these are kept."""
    return layer_cost(keeping(config, names), "moe", estimator.tokens, estimator.ranks).recomputed.flops


def _mean_shares(config: Config, estimator: Estimator) -> dict[str, float]:
    """The mean number of routed rows over the room for them, by name."""
    rows, tokens = expert_buffers(config, estimator.tokens, estimator.ranks).rows, estimator.tokens
    received = tokens * mean_owners(config.model, estimator.ranks) / rows.tokens
    return {"expert_input": received, "expert_gate_up": tokens * config.model.moe.active_experts / rows.copies}


def _dispatch(config: Config, placement: Placement) -> tuple[float, float]:
    """Bytes and seconds of sending tokens to their experts once a pass: what ``full`` does more than ``none``."""
    kept = dataclasses.replace(
        config, train=dataclasses.replace(config.train, remat="none", **dict.fromkeys(LISTS, ()))
    )
    plain, again = (Estimator(one, placement).collectives() for one in (kept, keeping(config, ())))
    more = lambda value: sum(map(value, again)) - sum(map(value, plain))  # noqa: E731
    return more(lambda one: one.bytes), more(lambda one: one.seconds)
