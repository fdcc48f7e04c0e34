"""What an engine that has joined a run says of itself."""

from __future__ import annotations

import dataclasses

from k2jax.agents.collect.wire_messages import Record


@dataclasses.dataclass(frozen=True)
class EngineJoin(Record):
    """What an engine that joins a run says of itself.

    Attributes:
        name: of its machine and process, for people.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class EngineState(Record):
    """What an engine of a run has and does.

    Attributes:
        version: of its weights.
        digest: of its weights, see ``inference.checksum.digest``.
        busy_seconds: that it has stepped [s].
        counts: the fields of ``inference.stats.EngineStats``.
    """

    version: int
    digest: str
    busy_seconds: float
    counts: dict[str, int]
