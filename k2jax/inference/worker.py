"""An engine on a thread of its own, for callers that must not block, such as a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
import contextlib
import queue
import threading
import time
from typing import Any

from k2jax.client import Sampling
from k2jax.inference.engine import Engine, OnRequest
from k2jax.inference.media import PlacedChunk
from k2jax.inference.request import Request, State
from k2jax.inference.stats import EngineStats

_LATELY = 0.999
"""What is left after a step of the most sequences that were ready."""


class Worker:
    """Steps an engine while it has work. Every method may be called from any thread.

    ``on_token`` callbacks run on the worker's thread. An error in the engine ends the worker: ``failed`` holds it,
    every request finishes as cancelled, and later calls raise RuntimeError.

    Args:
        engine: nobody else may use it.
        rest: how long it waits for more requests, at most, before a step of less than half as many sequences as there
            were lately: a multiple of the last step's time. A step of one takes nearly as long as a step of many, so
            that an engine which shares its processors with what sequences wait for should take few.

    Attributes:
        failed: why the worker has ended; None where it has not.
        busy_seconds: that the engine has stepped [s].
    """

    def __init__(self, engine: Engine, rest: float = 0.0):
        self._engine, self._rest = engine, rest
        self.busy_seconds = self._step_seconds = self._usual = 0.0
        self._free = threading.Event()  # cleared while somebody else has the engine
        self._free.set()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = threading.Lock()  # held to put a call in, so that none comes after the inbox was last emptied
        self._stopping = False
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def max_length(self) -> int:
        """The engine's longest sequence [tokens]."""
        return self._engine.max_length

    def submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        generated: Sequence[int] = (),
        *,
        media: Sequence[PlacedChunk] = (),
        on_token: OnRequest | None = None,
        scored_temperature: float = 1.0,
    ) -> Request:
        """Queues a request; see ``Engine.submit``, and ``Request`` for ``scored_temperature``.

        Raises:
            UserError: a prompt, image or sampling parameter that the engine refuses; nothing is queued.
            RuntimeError: the worker has failed or stopped.
        """
        request = self._engine.make_request(prompt, sampling, generated, media=media, on_token=on_token)
        request.scored_temperature = scored_temperature
        self._put(lambda: self._engine.enqueue(request))
        return request

    def cancel(self, request: Request) -> None:
        """Ends a request; its slot and pages are free before the next step. A finished one is left alone."""
        with contextlib.suppress(RuntimeError):  # a worker that has stopped has cancelled everything
            self._put(lambda: self._engine.cancel(request))

    def call(self, function: Callable[[Engine], Any], timeout: float | None = None) -> Any:
        """Runs ``function(engine)`` between two steps; returns its result, or raises its exception here."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(function(self._engine))
            except Exception as error:
                done.set_exception(error)

        self._put(run)
        return done.result(timeout)

    def hold(self) -> None:
        """Waits for the step at work; until ``release`` the engine is the caller's, and calls of others wait.

        Raises:
            RuntimeError: the worker has failed or stopped.
        """
        reached = threading.Event()
        self._free.clear()

        def stand_still() -> None:
            reached.set()
            self._free.wait()

        try:
            self._put(stand_still)
        except RuntimeError:
            self._free.set()
            raise
        reached.wait()

    def release(self) -> None:
        """Steps again after ``hold``."""
        self._free.set()

    @property
    def engine(self) -> Engine:
        """The engine, which belongs to the caller between ``hold`` and ``release``."""
        return self._engine

    def exchange(self, engine: Engine) -> None:
        """Goes on with another engine, whose longest sequence and vocabulary are the same; only while held."""
        hand_over(self._engine, engine)
        self._engine = engine

    def stats(self) -> EngineStats:
        """The engine's counters, as of the last step."""
        return self._engine.stats()

    def stop(self) -> None:
        """Cancels everything and ends the thread."""
        with self._open:
            self._stopping = True
        self._free.set()
        self._inbox.put(lambda: None)
        self._thread.join()

    def _put(self, call: Callable[[], None]) -> None:
        with self._open:
            if self.failed is not None or self._stopping:
                raise RuntimeError("the engine has stopped") from self.failed
            self._inbox.put(call)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_calls(block=not self._engine.has_work())
                self._await_more()
                if not self._stopping and self._engine.has_work():
                    began = time.perf_counter()
                    self._engine.step()
                    self._step_seconds = time.perf_counter() - began
                    self.busy_seconds += self._step_seconds
        except BaseException as error:  # kept for later calls, which report it
            with self._open:
                self.failed = error
        finally:
            self._take_calls(block=False)  # requests that came meanwhile are cancelled too, and calls get their answers
            self._cancel_all()

    def _await_more(self) -> None:
        """Rests before a step of few sequences, and takes the calls that come meanwhile."""
        until = time.perf_counter() + self._rest * self._step_seconds
        self._usual = max(self._ready(), _LATELY * self._usual)
        while self._ready() < self._usual / 2 and (left := until - time.perf_counter()) > 0 and not self._stopping:
            try:
                self._inbox.get(timeout=left)()
            except queue.Empty:
                return

    def _ready(self) -> int:
        stats = self._engine.stats()
        return stats.running + stats.waiting

    def _cancel_all(self) -> None:
        """Ends every request, also where a request's callback is what failed."""
        while True:
            try:
                return self._engine.cancel_all()
            except Exception as error:
                self.failed = self.failed or error

    def _take_calls(self, block: bool) -> None:
        while block or not self._inbox.empty():
            self._inbox.get()()
            block = False


def hand_over(old: Engine, new: Engine) -> None:
    """Moves all requests to another engine, where they go on behind their tokens so far; those that ran are first."""
    new.grammars = old.grammars
    for request in sorted(old.requests, key=lambda request: request.state != State.RUNNING):
        old.pause(request)
        request.state = State.WAITING
        new.enqueue(request)
