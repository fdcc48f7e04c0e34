"""What an engine that has joined a run says of itself."""

from __future__ import annotations

import dataclasses

from k2jax.agents.collect.wire_messages import Record
from k2jax.trajectory.steps import POLICY


@dataclasses.dataclass(frozen=True)
class EngineJoin(Record):
    """What an engine that joins a run says of itself.

    Attributes:
        name: of its machine and process, for people.
        role: whose weights it has, ``POLICY`` or the name of a frozen role.
    """

    name: str
    role: str = POLICY


@dataclasses.dataclass(frozen=True)
class EngineRole(Record):
    """What an engine of a run answers as.

    Attributes:
        role: ``POLICY``, or the name of a frozen role.
        checkpoint: of the role, see ``inference.roles.number_in``; of the policy the run says which weights it takes.
    """

    role: str = POLICY
    checkpoint: int = 0


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
