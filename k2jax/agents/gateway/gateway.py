"""The rollouts that a gateway serves, from their opening to their end and through its own restarts."""

from __future__ import annotations

import hashlib
import hmac
import math
from pathlib import Path
import re
import secrets
from typing import Any, NamedTuple

from k2jax.agents.api import ApiError, ModelCard
from k2jax.agents.api.media_parts import check_media_room
from k2jax.agents.gateway.exchange import Exchange, PreparedRequest
from k2jax.agents.gateway.log import RolloutLogs
from k2jax.agents.gateway.session import GatewaySession
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.client import Client
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory, TrajectoryStore
from k2jax.trajectory.types import Status

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_BYTES = 24
_NOBODY = hashlib.sha256(secrets.token_bytes(_KEY_BYTES)).hexdigest()  # of a key that no rollout has
LOGS, TRAJECTORIES = "rollouts", "trajectories"
"""Folders of a gateway with a folder: its logs, and a store of the trajectories of rollouts that have ended."""


class RolloutAccess(NamedTuple):
    """What an agent needs to reach the model.

    Attributes:
        rollout: name of the rollout.
        path: of the rollout at the gateway; OpenAI's clients add ``/v1``, Anthropic's add nothing.
        key: the API key.
    """

    rollout: str
    path: str
    key: str

    def __repr__(self) -> str:
        """Without the key, because what is printed ends in logs."""
        return f"RolloutAccess(rollout={self.rollout!r}, path={self.path!r}, key=...)"


class Gateway:
    """Rollouts of black-box agents over a client of a model. Its methods must be called on the event loop's thread.

    Args:
        client: generates tokens.
        card: the model; it needs a chat format.
        folder: of the logs and trajectories; None records in memory alone, where rollouts stay after their end.
        answer_seconds: time that the model has for one answer; what it has sampled by then is the answer [s].

    Attributes:
        card: the model.
        closing: whether new requests are rejected because the server is shutting down.

    Raises:
        UserError: the model has no chat format, or another gateway writes to the folder.
    """

    def __init__(
        self, client: Client, card: ModelCard, folder: Path | str | None = None, *, answer_seconds: float = math.inf
    ):
        if card.chat is None:
            raise UserError(f"{card.name} has no chat format, which agents need; use a chat model")
        self.card = card
        self.closing = False
        self._client, self._answer_seconds = client, answer_seconds
        self._sessions: dict[str, GatewaySession] = {}
        self._exchanges: set[Exchange] = set()
        self._stored: dict[int, set[tuple[Any, Any]]] = {}
        self._logs = self._store = None
        if folder is not None:
            self._logs, self._store = RolloutLogs(Path(folder) / LOGS), TrajectoryStore(Path(folder) / TRAJECTORIES)
            for name in self._logs.rollouts():
                self._recover(name, self._logs)

    @property
    def running(self) -> int:
        """Answers that are being generated."""
        return len(self._exchanges)

    def open(self, spec: GatewayRollout, name: str | None = None) -> RolloutAccess:
        """Begins a rollout.

        Args:
            spec: what there is to say about it.
            name: letters, digits, ``-`` and ``_``; chosen at random by default.

        Raises:
            UserError: the name is taken or malformed, or a value of ``spec`` is out of range.
        """
        spec.check()
        name = secrets.token_hex(8) if name is None else name
        if not _NAME.fullmatch(name):
            raise UserError(f"a rollout's name has 1 to 64 letters, digits, - and _, unlike {ascii(name)[:80]}")
        if self._is_taken(name, spec.key[0]):
            raise UserError(f"there is a rollout {name} already; choose another name")
        key = f"k2-{secrets.token_urlsafe(_KEY_BYTES)}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        session = self._new_session(name, spec, digest)
        if self._logs is not None:
            self._logs.append(name, {"event": "open", "spec": spec.to_json(), "digest": digest})
        self._sessions[name] = session
        return RolloutAccess(name, f"/r/{name}", key)

    def session(self, name: str) -> GatewaySession:
        """Returns a rollout, open or ended; one that has ended and is no longer in memory is read from its log.

        Raises:
            UserError: there is none of this name, or its log is damaged.
        """
        session = self._sessions.get(name)
        if session is None and self._logs is not None and _NAME.fullmatch(name) and self._logs.has_ended(name):
            session = self._replayed(name, self._logs)
        if session is None:
            raise UserError(f"there is no rollout {ascii(name)[:80]}")
        return session

    def authorized(self, name: str, key: bytes | None) -> GatewaySession:
        """Returns the rollout of a name if the key is its own and it has not ended.

        Raises:
            ApiError: 401, whatever is wrong.
        """
        session = self._sessions.get(name)
        digest = _NOBODY if session is None else session.digest
        is_key = hmac.compare_digest(hashlib.sha256(key or b"").hexdigest(), digest)
        if session is None or not is_key or session.is_closed:
            raise ApiError(
                401, "this needs the key of the rollout, which is void after its end", code="invalid_api_key"
            )
        return session

    def start(self, prepared: PreparedRequest) -> Exchange:
        """Begins to answer a request.

        Raises:
            ApiError: its images do not fit beside those of the answers that are being generated.
        """
        check_media_room(prepared.encoded.media, (exchange.request.media for exchange in self._exchanges))
        exchange = Exchange(prepared, self._client, self.card, self._answer_seconds)
        self._exchanges.add(exchange)
        prepared.session.in_progress += 1
        prepared.session.held_bytes += exchange.held_bytes
        exchange.on_end(self._forget)
        return exchange

    async def close(self, name: str, status: Status = "finished", error: str = "") -> list[Trajectory]:
        """Ends a rollout: its key is void, and running answers are recorded as far as they are.

        A gateway with a folder then keeps nothing of it in memory. Closing a rollout again returns the same
        trajectories.

        Args:
            name: of the rollout.
            status: of its trajectories.
            error: why it is masked, for the status ``masked``.

        Returns:
            The main trajectory, then those of side calls.

        Raises:
            UserError: there is no such rollout, or the status is none that ends.
            OSError: the end could not be written.
        """
        session = self.session(name)
        if status not in ("finished", "truncated", "masked") or (status == "masked") != bool(error):
            raise UserError("a rollout ends as finished, truncated, or masked with the error that masks it")
        session.is_closed = True
        async with session.ending:  # an end that failed or was cancelled can be asked for again
            if not session.has_ended:
                for exchange in self._exchanges:
                    if exchange.session is session:
                        exchange.abandon()
                await session.wait_until_idle()
                if self._logs is not None:
                    self._logs.append(name, {"event": "close", "status": status, "error": error})
                self._end(session, status, error)
            self._store_ended(session)
        return session.trajectories()

    def cancel_all(self) -> None:
        """Ends every answer at once."""
        for exchange in self._exchanges:
            exchange.cancel()

    def release_folder(self) -> None:
        """Lets another gateway use the folder."""
        if self._logs is not None:
            self._logs.close()
        if self._store is not None:
            self._store.close()

    def _forget(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)
        exchange.session.in_progress -= 1
        exchange.session.held_bytes -= exchange.held_bytes

    def _new_session(self, name: str, spec: GatewayRollout, digest: str) -> GatewaySession:
        logs = self._logs

        def write(line: bytes) -> None:
            assert logs is not None
            logs.append_line(name, line)

        return GatewaySession(name, spec, digest, self.card, None if logs is None else write)

    def _is_taken(self, name: str, step: int) -> bool:
        """Whether a rollout of this name is there, has a log, or has trajectories among those of its step."""
        if name in self._sessions or (self._logs is not None and self._logs.has_ended(name)):
            return True
        return self._store is not None and (name, None) in self._exported(step)

    def _recover(self, name: str, logs: RolloutLogs) -> None:
        """Goes on with a rollout as an earlier process left it."""
        session = self._replayed(name, logs)
        if session is not None:  # else the opening itself was cut off, and nobody has its key
            self._sessions[name] = session
            if session.has_ended:
                self._store_ended(session)

    def _replayed(self, name: str, logs: RolloutLogs) -> GatewaySession | None:
        """A rollout as its log tells it; None where that does not hold its whole opening."""
        session = None
        for record in logs.read(name):
            if record["event"] == "open":
                spec = GatewayRollout.from_json(record["spec"])
                session = self._new_session(name, spec, record["digest"])
            elif session is None:
                raise UserError(f"the log of the rollout {name} does not begin with its opening; delete it")
            elif record["event"] == "request":
                session.replay(record)
            else:
                self._end(session, record["status"], record["error"])
        return session

    def _end(self, session: GatewaySession, status: Status, error: str) -> None:
        session.is_closed = session.has_ended = True
        session.bodies.forget()
        for trajectory in session.trajectories():
            trajectory.status, trajectory.error = status, error

    def _store_ended(self, session: GatewaySession) -> None:
        """Stores the trajectories of a rollout that has ended and frees it, where there is a folder."""
        if self._logs is None or session.name not in self._sessions:
            return
        self._export(session)
        self._logs.put_away(session.name)
        del self._sessions[session.name]

    def _export(self, session: GatewaySession) -> None:
        """Stores the trajectories that an earlier process has not stored yet."""
        assert self._store is not None
        step = session.spec.key[0]
        known = self._exported(step)
        for trajectory in session.trajectories():
            if _identity(trajectory) not in known:
                self._store.append(step, trajectory)
                known.add(_identity(trajectory))

    def _exported(self, step: int) -> set[tuple[Any, Any]]:
        """Which trajectories of a step are in the store; of each its rollout, and its number if it is a side call."""
        assert self._store is not None
        if step not in self._stored:
            known = self._store.read(step) if step in self._store.steps() else ()
            self._stored[step] = {_identity(trajectory) for trajectory in known}
        return self._stored[step]


def _identity(trajectory: Trajectory) -> tuple[Any, Any]:
    return trajectory.metadata.get("rollout"), trajectory.metadata.get("side_call")
