"""The controller's engine: every call that changes what it does next stands in the log of commands.

Its scheduling is a function of these calls and of the tokens that its programs draw, which every process has. So the
same calls make another process's engine run the same programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from k2jax.inference.engine import Engine, OnRequest
from k2jax.inference.request import Request, RequestWatch, State
from k2jax.inference.stats import EngineStats
from k2jax.inference.weights import EngineWeights
from k2jax.rl.followers.request_form import request_values


class EngineLog(Protocol):
    """What an engine writes to."""

    def write(self, engine: int, call: str, *arguments: Any) -> None:
        """Adds a call of an engine; it is sent before the next program is issued."""
        ...

    def number(self, request: Request) -> int:
        """The number of a request in the log."""
        ...

    def issue(self, function: Callable[[], None]) -> None:
        """Runs what issues programs on the thread that may, and waits for it."""
        ...

    def note_stop(self, request: int, tokens: int) -> None:
        """Says that the caller of a request has stopped it behind so many tokens."""
        ...

    def note_program(self, engine: int, name: str, inputs: Any) -> None:
        """Sends what is to be compared before a program is issued."""
        ...

    def flush(self) -> None:
        """Sends what was added and not sent."""
        ...


class LeadingEngine:
    """An engine that writes its calls to a log; clients use it as they use an ``Engine``.

    The phases in which every process calls its own engine, such as an update of the weights, do not go through it:
    ``release`` and what ``weights`` offers are not written.

    Args:
        engine: does the work.
        number: of the engine in the log.
        log: where calls are written.
    """

    def __init__(self, engine: Engine, number: int, log: EngineLog):
        self._engine, self._number, self._log = engine, number, log
        engine.programs.before = lambda name, inputs: log.note_program(number, name, inputs)
        self.make_request, self.has_work, self.release = engine.make_request, engine.has_work, engine.release

    @property
    def version(self) -> int:
        """See ``Engine``."""
        return self._engine.version

    @property
    def max_length(self) -> int:
        """See ``Engine``."""
        return self._engine.max_length

    @property
    def requests(self) -> list[Request]:
        """See ``Engine``."""
        return self._engine.requests

    @property
    def weights(self) -> EngineWeights:
        """See ``Engine``."""
        return self._engine.weights

    def stats(self) -> EngineStats:
        """See ``Engine``."""
        return self._engine.stats()

    def enqueue(self, request: Request) -> None:
        """See ``Engine``."""
        number, watched = self._log.number(request), _may_stop(request.on_token)
        self._log.write(self._number, "enqueue", number, request_values(request), watched)
        if watched and not isinstance(request.on_token, _Watched):
            request.on_token = _Watched(request.on_token, number, self._log)
        self._engine.enqueue(request)

    def cancel(self, request: Request) -> None:
        """See ``Engine``."""
        if request.state != State.FINISHED:
            self._log.write(self._number, "cancel", self._log.number(request))
            self._engine.cancel(request)

    def cancel_all(self) -> None:
        """See ``Engine``."""
        self._log.write(self._number, "cancel_all")
        self._engine.cancel_all()

    def pause(self, request: Request) -> None:
        """See ``Engine``."""
        self._log.write(self._number, "pause", self._log.number(request))
        self._engine.pause(request)

    def sort_waiting(self) -> None:
        """See ``Engine``."""
        self._log.write(self._number, "sort_waiting")
        self._engine.sort_waiting()

    def drop_prefixes(self) -> None:
        """See ``Engine``."""
        self._log.write(self._number, "drop_prefixes")
        self._engine.drop_prefixes()

    def step(self) -> None:
        """See ``Engine``; its programs are issued by the thread that issues all."""
        self._log.issue(self._step)

    def _step(self) -> None:
        self._log.write(self._number, "step")
        self._engine.step()
        self._log.flush()


class _Watched:
    """The ``on_token`` of a request whose caller may stop it: the log says where."""

    def __init__(self, on_token: OnRequest, number: int, log: EngineLog):
        self._on_token, self._number, self._log = on_token, number, log

    def __call__(self, request: Request) -> bool:
        stops = bool(self._on_token(request))
        if stops and request.state == State.RUNNING:
            self._log.note_stop(self._number, len(request.tokens))
        return stops


def _may_stop(on_token: OnRequest | None) -> bool:
    if isinstance(on_token, RequestWatch):
        return on_token.may_stop
    return on_token is not None
