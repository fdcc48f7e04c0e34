"""A process that does tasks for another one, over a socket, until that closes it or dies.

It is no child of ``multiprocessing``, which would import the program's main module again: jax with it, for a training
run, and the user's own code where that has no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
import os
import pickle
import socket
import subprocess
import sys
import traceback
from typing import Any

from k2jax.data.processes import end_with

MOST_TRIES = 3
"""Processes that may die of one task."""
AHEAD = 4
"""Tasks for each process that are done or waiting before their results are asked for."""
THREADS = {
    "TOKENIZERS_PARALLELISM": "false",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
}
"""Variables of a process that uses one core."""


def environment() -> dict[str, str]:
    """Variables of the process: those of this one, one thread, and where packages of the user are."""
    return {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def outcome(function: Callable[[Any], Any], item: Any) -> bytes:
    """The result of a function or its exception, as ``result`` takes it."""
    try:
        return pickle.dumps((True, function(item)))
    except Exception as error:
        error.add_note(traceback.format_exc())
        try:
            return pickle.dumps((False, error))
        except Exception:  # an exception need not be fit for another process
            return pickle.dumps((False, RuntimeError(traceback.format_exc())))


def result(outcome: bytes) -> Any:
    """The result that ``outcome`` was given; its exception is raised."""
    succeeded, value = pickle.loads(outcome)
    if succeeded:
        return value
    raise value


class TaskProcess:
    """The other end: starts the process, and asks it for one result at a time."""

    def __init__(self):
        """Starts it; it is ready when it answers."""
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,  # an interrupt of the terminal is the program's own matter
            )
        self._connection = Connection(ours.detach())
        self._function: bytes | None = None

    def call(self, function: bytes, item: Any) -> bytes:
        """The ``outcome`` of a pickled function, which is sent once.

        Raises:
            EOFError, OSError: the process has died.
        """
        if self._function is not function:
            self._connection.send_bytes(pickle.dumps(("function", function)))
            self._function = function
        self._connection.send_bytes(pickle.dumps(("item", item)))
        return self._connection.recv_bytes()

    def kill(self) -> None:
        """Ends it at once; a call that waits for it fails."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it and its socket."""
        self.kill()
        self._connection.close()


def main() -> None:
    """Does what it is asked for."""
    descriptor, parent = (int(argument) for argument in sys.argv[1:3])
    end_with(parent)
    connection, function = Connection(descriptor), None
    while True:
        try:
            kind, value = pickle.loads(connection.recv_bytes())
            if kind == "function":
                function = pickle.loads(value)
            else:
                connection.send_bytes(outcome(function, value))
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main()
