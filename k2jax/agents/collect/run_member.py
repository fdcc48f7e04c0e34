"""An engine's end of its connection to a run: it joins, says which weights it has, and answers what the run asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import enum
from typing import Any

from k2jax.agents.collect.engine_address import EngineAddress
from k2jax.agents.collect.engine_socket import EngineAnswers
from k2jax.agents.collect.engine_states import EngineJoin, EngineRole, EngineState
from k2jax.agents.collect.wire import VERSION, FrameConnection, other_version, version_of
from k2jax.agents.collect.wire_messages import EngineMessage, SentImage
from k2jax.client import Client
from k2jax.errors import UserError
from k2jax.trajectory.steps import POLICY

STATE_SECONDS = 0.1
"""Time between two messages about what the engine does [s]."""


class MemberEnd(enum.Enum):
    """Why an engine is no member any more."""

    RUN_ENDED = enum.auto()
    LOST = enum.auto()


class RunMember:
    """Serves a client to a run, over one connection at a time.

    Args:
        name: of the engine, for people.
        client: generates.
        state: returns what the engine has and does; it raises what has ended the engine.
        version: returns the version of the weights that choose a token, on the thread that reports it.
        media: see ``EngineServer``.
        role: whose weights it has.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        state: Callable[[], EngineState],
        version: Callable[[], int],
        media: Callable[[SentImage], Any] | None = None,
        role: str = POLICY,
    ):
        self._name, self._client, self._state, self._role = name, client, state, role
        self._version, self._media = version, media
        self._connection: FrameConnection | None = None

    def tell(self) -> None:
        """Says what the engine has, where it is a member now: with every version of the weights, before any token."""
        if self._connection is not None:
            self._connection.send(EngineMessage.STATE, self._state().pack())

    async def serve(self, address: EngineAddress) -> MemberEnd | EngineRole:
        """Joins, and answers until the run has ended or is lost, or has another role for the engine, which is returned.

        Raises:
            UserError: the run speaks another version of the wire, or what ``state`` raises.
        """
        done: asyncio.Future[MemberEnd | EngineRole] = asyncio.get_running_loop().create_future()
        answers = EngineAnswers(self._client, self._media, self._version)

        def end(how: MemberEnd | EngineRole) -> None:
            if not done.done():
                done.set_result(how)

        def greet(version: int) -> None:
            if version == VERSION:
                connection.send(EngineMessage.JOIN, EngineJoin(self._name, self._role).pack())
                self._connection = connection
                self.tell()
            elif not done.done():
                done.set_exception(UserError(other_version("the run", version)))

        def on_frame(kind: int, body: bytes) -> None:
            if kind == EngineMessage.HELLO:
                greet(version_of(body))
            elif kind == EngineMessage.RUN_ENDED:
                end(MemberEnd.RUN_ENDED)
            elif kind == EngineMessage.BECOME:
                end(EngineRole.unpack(body))
            else:
                answers.on_frame(kind, body)

        answers.connection = connection = FrameConnection(on_frame, lambda: end(MemberEnd.LOST))
        try:
            await address.connect(connection)
        except OSError:
            return MemberEnd.LOST
        try:
            while not done.done():
                await asyncio.wait([done], timeout=STATE_SECONDS)
                self.tell()
            return done.result()
        finally:
            self._connection = None
            answers.cancel()
            connection.abort()
