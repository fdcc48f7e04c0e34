"""Process 0 of several: it runs the episodes and writes the log of commands that the others replay.

Programs of all devices are issued by one thread, the one that opened the run. While episodes run, it waits for the
engines' threads to ask it for a step; in every other phase it does what the loop says.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
import itertools
import queue
import threading
from typing import Any, ClassVar
import weakref

from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.request import Request
from k2jax.processes.command_tree import MessageTree
from k2jax.processes.values import encode
from k2jax.rl.followers.commands import Commands, Result
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.leading_engine import LeadingEngine
from k2jax.train.signals import StopAskedError


class Controller(Commands):
    """See the module's text, and ``Commands``.

    Args:
        tree: to the other processes.
    """

    follows: ClassVar[bool] = False

    def __init__(self, tree: MessageTree):
        self._tree, self._thread = tree, threading.current_thread()
        self._engines, self._numbers = itertools.count(), itertools.count()
        self._requests: weakref.WeakKeyDictionary[Request, int] = weakref.WeakKeyDictionary()
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._calls: list[list[Any]] = []
        self._stops: list[list[int]] = []

    # --- of the loop ------------------------------------------------------------------------------------------------

    def engine(self, engine: Engine) -> LeadingEngine:
        """See ``Commands``."""
        return LeadingEngine(engine, next(self._engines), self)

    def issue_while(self, function: Callable[[], Result]) -> Result:
        """See ``Commands``; ``function`` runs on a thread of its own while this one issues programs."""
        outcome: Future[Result] = Future()
        thread = threading.Thread(target=_run, args=(function, outcome), name="episodes", daemon=True)
        outcome.add_done_callback(lambda _: self._asked.put(lambda: None))
        thread.start()
        while not outcome.done():
            self._asked.get()()
        try:
            result = outcome.result()
        except StopAskedError:
            self._send("stop")
            raise
        self._send("hold")
        return result

    def joint(self, name: str, function: Callable[[Any], Result]) -> Callable[[Any], Result]:
        """See ``Commands``."""

        def called(value: Any) -> Result:
            outcome: Future[Result] = Future()

            def run() -> None:
                self._send("joint", name=name, value=value)
                _run(lambda: function(value), outcome)
                error = outcome.exception()
                if error is not None and not isinstance(error, UserError):
                    raise error  # here, where it ends the process, whatever becomes of the thread that has called
                self._send("done", failed=error is not None)

            run() if threading.current_thread() is self._thread else self._asked.put(run)
            return outcome.result()

        return called

    def share(self, value: Any) -> Any:
        """See ``Commands``."""
        self._send("share", value=value)
        return value

    def check(self, name: str, digest: Callable[[], bytes] = bytes) -> None:
        """See ``Commands``."""
        self._send("check", name=name, digest=digest())

    # --- of its engines ---------------------------------------------------------------------------------------------

    def write(self, engine: int, call: str, *arguments: Any) -> None:
        """See ``EngineLog``."""
        with self._lock:
            self._calls.append([engine, call, *arguments])

    def number(self, request: Request) -> int:
        """See ``EngineLog``."""
        with self._lock:
            if request not in self._requests:
                self._requests[request] = next(self._numbers)
            return self._requests[request]

    def issue(self, function: Callable[[], None]) -> None:
        """See ``EngineLog``."""
        if threading.current_thread() is self._thread:
            return function()
        done: Future[None] = Future()
        self._asked.put(lambda: _run(function, done))
        done.result()

    def note_stop(self, request: int, tokens: int) -> None:
        """See ``EngineLog``."""
        with self._lock:
            self._stops.append([request, tokens])

    def note_program(self, engine: int, name: str, inputs: Any) -> None:
        """See ``EngineLog``."""
        self._send("program", engine=engine, name=name, digest=digest_of(inputs))

    def flush(self) -> None:
        """See ``EngineLog``."""
        if self._calls:
            self._send("calls")

    def _send(self, kind: str, **values: Any) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
            stops, self._stops = self._stops, []
        self._tree.send(encode({"kind": kind, "calls": calls, "stops": stops, **values}))


def _run(function: Callable[[], Result], outcome: Future[Result]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:
        outcome.set_exception(error)
