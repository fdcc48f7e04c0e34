"""Pipeline schedules as data: tables of what each stage does at each tick. Pure functions, no JAX.

A model is cut into C chunks of layers; chunk c lies on stage c mod S, so that a stage holds up to V of them (its
virtual stages). A micro-batch goes forward through chunks 0 .. C-1 and backward through C-1 .. 0. A tick is one
forward of a chunk and one backward of a chunk on every stage, either of which may be idle; what one stage sends
arrives at the next tick. The embedding with the leading dense layers, and the loss with the final norm and the head,
belong to no stage: all stages compute them together, for one micro-batch at a tick, each its slice of the vocabulary,
the heads and the hidden widths.

Micro-batches enter in groups of S. Micro-batch m enters at ``start(m) = (m // S) S V + m mod S`` and runs chunk c
forward at ``start + c`` and, under 1F1B, backward at ``start + 2 C - 1 - c``; its loss comes one tick after the last
forward. A stage's forwards of one group are V neighbours of each of S micro-batches, S V ticks in all, so groups
never collide, whatever C <= S V is: a stage with fewer than V chunks idles.

Every tick costs its slowest stage, so a run takes (ticks with a forward) f + (ticks with a backward) b. For M a
multiple of S and C = S V that is ``(M V + S - 1)(f + b)``, where ``M V (f + b)`` would do without a bubble: the
executor's bubble is ``(S - 1) / (M V + S - 1)`` of the time. ``Schedule.bubble`` counts it from the table.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np

Key = tuple[int, int]  # (micro-batch, chunk)

COLUMNS = (
    "forward",  # micro-batch that runs forward, -1 for none
    "forward_round",  # which of the stage's chunks
    "forward_slot",  # where its input lies
    "backward",
    "backward_round",
    "backward_slot",  # where the chunk's input lies still
    "cotangent_slot",  # where the cotangent of its output lies
    "arrival_slot",  # where to put the activation that arrived
    "cotangent_arrival_slot",
    "loss_slot",  # where to put the cotangent that the loss gives, on the stage of the last chunk
)


class Phase(NamedTuple):
    """A run of ticks, and whether forwards, backwards and losses occur in it."""

    ticks: slice
    forward: bool
    backward: bool
    loss: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """One table.

    Attributes:
        stages: S.
        rounds: V, chunks that a stage holds at most.
        chunks: C.
        micro_batches: M.
        table: by name of ``COLUMNS``, int32 ``[ticks, S]``; -1 is nothing.
        embed, loss, embed_backward: int32 ``[ticks]``, the micro-batch whose embedding, loss, or embedding's gradient
            all stages compute together; -1 is none.
        slots: activations that a stage holds at a time, at most.
        cotangent_slots: the same of cotangents.
    """

    stages: int
    rounds: int
    chunks: int
    micro_batches: int
    table: dict[str, np.ndarray]
    embed: np.ndarray
    loss: np.ndarray
    embed_backward: np.ndarray
    slots: int
    cotangent_slots: int

    @property
    def ticks(self) -> int:
        """Length of the table."""
        return len(self.embed)

    def phases(self) -> list[Phase]:
        """Longest runs of ticks in which the same kinds of work occur on any stage."""
        forward, backward = ((self.table[name] >= 0).any(1) for name in ("forward", "backward"))
        kinds = list(zip(forward.tolist(), backward.tolist(), strict=True))
        cuts = [0, *(t for t in range(1, self.ticks) if kinds[t] != kinds[t - 1]), self.ticks]
        spans = [slice(*pair) for pair in itertools.pairwise(cuts)]
        return [Phase(span, *kinds[span.start], bool((self.loss[span] >= 0).any())) for span in spans]

    def bubble(self) -> float:
        """Share of the time in which an average stage is idle, where every tick waits for its slowest stage.

        A backward that recomputes costs three forwards.
        """
        forward, backward = 1.0, 3.0
        seconds = sum(
            (phase.ticks.stop - phase.ticks.start) * (forward * phase.forward + backward * phase.backward)
            for phase in self.phases()
        )
        return 1.0 - self.micro_batches * self.chunks / self.stages * (forward + backward) / seconds


def build_pipeline_schedule(stages: int, rounds: int, chunks: int, micro_batches: int) -> Schedule:
    """The table of 1F1B, interleaved where ``rounds`` > 1.

    Args:
        stages: S.
        rounds: V.
        chunks: C, more than S (V - 1), at most S V, and at least S.
        micro_batches: M.

    Raises:
        ValueError: numbers that are not a pipeline.
    """
    if not max(stages, stages * (rounds - 1) + 1) <= chunks <= stages * rounds or micro_batches < 1:
        raise ValueError(f"{chunks} chunks do not lie on {stages} stages of {rounds}, or no micro-batch")
    forward = {(m, c): first_tick(m, stages, rounds) + c for m in range(micro_batches) for c in range(chunks)}
    backward = {(m, c): first_tick(m, stages, rounds) + 2 * chunks - 1 - c for m, c in forward}
    return _tabulate(stages, rounds, chunks, micro_batches, forward, backward)


def first_tick(micro_batch: int, stages: int, rounds: int) -> int:
    """The tick at which a micro-batch runs the first chunk forward, with S stages of V chunks."""
    return micro_batch // stages * stages * rounds + micro_batch % stages


def _tabulate(
    stages: int, rounds: int, chunks: int, micro_batches: int, forward: dict[Key, int], backward: dict[Key, int]
) -> Schedule:
    """Gives every activation and cotangent a slot for as long as it is needed, and writes everything into cells."""
    ticks = max(backward.values()) + 1
    table = {name: np.full((ticks, stages), -1, np.int32) for name in COLUMNS}

    def put(name: str, tick: int, chunk: int, value: int) -> None:
        cell = (tick, chunk % stages)
        assert table[name][cell] == -1, f"two entries of {name} at tick {tick} on stage {chunk % stages}"
        table[name][cell] = value

    slot_count = cotangent_slots = 0
    for stage in range(stages):
        mine = [(m, c) for m in range(micro_batches) for c in range(stage, chunks, stages)]
        # The embedding writes its result at the tick of the first chunk's forward.
        arrives = {(m, c): forward[m, c - 1] + 1 if c else forward[m, c] for m, c in mine}
        returns = {(m, c): (backward[m, c + 1] if c < chunks - 1 else forward[m, c]) + 1 for m, c in mine}
        slots, count = _colour({key: (arrives[key], backward[key]) for key in mine})
        cotangents, cotangent_count = _colour({key: (tick, backward[key]) for key, tick in returns.items()})
        slot_count, cotangent_slots = max(slot_count, count), max(cotangent_slots, cotangent_count)
        for m, c in mine:
            put("forward", forward[m, c], c, m)
            put("forward_round", forward[m, c], c, c // stages)
            put("forward_slot", forward[m, c], c, slots[m, c])
            put("backward", backward[m, c], c, m)
            put("backward_round", backward[m, c], c, c // stages)
            put("backward_slot", backward[m, c], c, slots[m, c])
            if c:
                put("arrival_slot", arrives[m, c], c, slots[m, c])
            put("cotangent_slot", backward[m, c], c, cotangents[m, c])
            arrival = "cotangent_arrival_slot" if c < chunks - 1 else "loss_slot"
            put(arrival, returns[m, c], c, cotangents[m, c])
    columns = {name: np.full(ticks, -1, np.int32) for name in ("embed", "loss", "embed_backward")}
    for m in range(micro_batches):
        columns["embed"][forward[m, 0]] = m
        columns["loss"][forward[m, chunks - 1] + 1] = m
        columns["embed_backward"][backward[m, 0]] = m
    return Schedule(
        stages=stages,
        rounds=rounds,
        chunks=chunks,
        micro_batches=micro_batches,
        table=table,
        **columns,
        slots=slot_count,
        cotangent_slots=cotangent_slots,
    )


def _colour(lifetimes: dict[Key, tuple[int, int]]) -> tuple[dict[Key, int], int]:
    """A slot for each (first, last) interval such that none is used twice at a time, and how many slots that takes."""
    slots: dict[Key, int] = {}
    busy_until: list[int] = []
    for key, (first, last) in sorted(lifetimes.items(), key=lambda item: item[1]):
        slot = next((i for i, end in enumerate(busy_until) if end < first), len(busy_until))
        busy_until[slot : slot + 1] = [last]
        slots[key] = slot
    return slots, len(busy_until)


def cut(layers: int, stages: int, virtual_stages: int) -> tuple[int, int] | None:
    """Layers of a chunk and number of chunks, or None where no equal chunks fill ``stages`` x ``virtual_stages``."""
    size = math.ceil(layers / (stages * virtual_stages))
    chunks = layers // size
    full = layers % size == 0 and max(stages, stages * (virtual_stages - 1) + 1) <= chunks
    return (size, chunks) if full else None
