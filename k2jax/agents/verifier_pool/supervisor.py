"""The process between the pool and one worker: it measures time, and kills the worker with all its descendants.

It runs no verifier itself, and is not delayed by a pool that is busy. Its arguments are the descriptor of a socket,
from which it reads requests until the other end is closed, and the memory of the worker in bytes.

Where a verifier that judges every answer gave no verdict, it says who may be to blame; see ``verifier_messages``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any

from k2jax.agents.verifier_pool import verifier_messages as frames
from k2jax.agents.verifier_pool.verdict_clock import PATIENCE, TICK, VerdictClock
from k2jax.agents.verifier_pool.verifier_messages import BUSY, UNCLEAR
from k2jax.agents.verifier_pool.verifier_worker import start
from k2jax.files.process_tree import adopt_orphans, glance, kill_descendants

LOADING = 120.0
"""Wall time in which a worker has to import a verifier [s]; it is no part of the time of a verdict."""
MOST_PROCESSES = 64


class _WorkerError(Exception):
    """The worker gives no verdict and has to go; its second argument is who is to blame."""


class _PoolGoneError(Exception):
    """Nobody waits for the verdict any more."""


class Supervisor:
    """Passes requests to a worker, which is replaced whenever it has given no verdict or left processes behind."""

    def __init__(self, pool: socket.socket, memory: int):
        """Args: ``pool`` sends requests; ``memory`` is the address space of every process of a worker in bytes."""
        self._pool, self._memory = pool, memory
        self._worker: socket.socket | None = None
        self._judges_every_answer = False  # the verifier that is asked

    def serve(self) -> None:
        """Answers requests until the pool closes its end."""
        while True:
            try:
                request = frames.receive(self._pool)
                answer = self._answer(request)
                frames.send(self._pool, answer)
            except (frames.FrameError, _PoolGoneError, OSError):
                self._replace()
                return

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._worker is None:
            _, self._worker = start(self._memory, self._pool)
        self._judges_every_answer = False
        try:
            answer = self._ask(request)
        except (_WorkerError, frames.FrameError, TimeoutError, OSError) as error:
            reason, blame = error.args if isinstance(error, _WorkerError) else (str(error), UNCLEAR)
            answer = {"error": reason, "blame": blame}
        if "error" in answer and not self._judges_every_answer:
            answer.pop("blame", None)
        if "error" in answer or answer.get("left"):
            self._replace()
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The worker's verdict, or its report of the user's mistake.

        The time of the verdict begins when the worker has loaded the verifier.
        """
        frames.send(self._worker, request)
        clock, end, arriving = None, time.monotonic() + LOADING, LOADING
        while True:
            self._wait(clock, end)
            answer = frames.receive(self._worker, time.monotonic() + arriving)
            if answer.get("id") != request["id"]:
                raise _WorkerError("the verifier's process sent what was not asked", UNCLEAR)
            if not (answer.get("started") and clock is None):
                return answer
            self._judges_every_answer = bool(answer.get("judges_every_answer"))
            limit = request["timeout"]
            clock = VerdictClock(glance(), limit, judges_every_answer=self._judges_every_answer)
            arriving = PATIENCE * limit

    def _wait(self, clock: VerdictClock | None, end: float) -> None:
        """Waits until the worker sends something, and looks after it meanwhile.

        Args:
            clock: of the verdict; None while the verifier is loaded.
            end: until when it is loaded, on the monotonic clock [s].
        """
        while True:
            readable = select.select([self._worker, self._pool], [], [], TICK)[0]
            if self._pool in readable:  # one request at a time: this can only be the end
                raise _PoolGoneError
            if self._worker in readable:
                return
            below = glance()
            if len(below) > MOST_PROCESSES:
                raise _WorkerError(f"the verifier started more than {MOST_PROCESSES} processes", UNCLEAR)
            if clock is None and time.monotonic() > end:
                raise _WorkerError(f"the verifier was not loaded in {LOADING:g} s", BUSY)
            if clock is not None and (fault := clock.look(below)):
                raise _WorkerError(*fault)

    def _replace(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        kill_descendants()


def main() -> None:
    """Serves the socket whose descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is the pool's business
    adopt_orphans()
    with socket.socket(fileno=int(sys.argv[1])) as pool:
        Supervisor(pool, int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
    os._exit(0)
