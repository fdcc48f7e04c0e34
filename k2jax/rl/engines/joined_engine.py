"""An engine that has joined the run, seen from the run: its connection, and the weights that it was found to have."""

from __future__ import annotations

import time

from k2jax.agents.collect.engine_requests import EngineLostError, EngineRequests
from k2jax.agents.collect.engine_states import EngineRole, EngineState
from k2jax.agents.collect.wire import FrameConnection
from k2jax.agents.collect.wire_messages import EngineMessage


class JoinedEngine(EngineRequests):
    """Asks an engine over the connection that it has opened.

    Args:
        connection: of the engine.
        name: that it gives itself.
        number: of the router.

    Attributes:
        state: what it last said of itself; None before it has.
        heard: when that was, by ``time.monotonic``.
        version: of its weights; None where they are not what the run has published.
        versions: all versions whose weights it was found to have.
        next_role: what it answers as when it has answered what it was asked for; None where it stays.
    """

    def __init__(self, connection: FrameConnection, name: str, number: int):
        super().__init__()
        self.connection: FrameConnection | None = connection
        self.name, self.number = name, number
        self.state: EngineState | None = None
        self.heard = time.monotonic()
        self.version: int | None = None
        self.versions: set[int] = set()
        self.next_role: EngineRole | None = None
        self._is_told = False

    async def connect(self) -> FrameConnection:
        """See ``EngineRequests``."""
        if self.connection is None:
            raise EngineLostError(f"the engine {self.name} has left")
        return self.connection

    def take(self, state: EngineState, published: dict[int, str]) -> None:
        """Notes what the engine says; ``published`` has the digests of the run's weights by version."""
        self.state, self.heard = state, time.monotonic()
        if published.get(state.version) == state.digest:
            self.version = state.version
            self.versions.add(state.version)
        else:
            self.version = None

    def move_on(self) -> None:
        """Tells it of its next role, once nobody waits for it any more; it then leaves by itself."""
        if self.next_role is not None and not (self.under_way or self._is_told) and self.connection is not None:
            self._is_told = True
            self.connection.send(EngineMessage.BECOME, self.next_role.pack())

    def leave(self) -> None:
        """Ends the connection and all requests."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()
        self.lost(f"the engine {self.name} is lost")
