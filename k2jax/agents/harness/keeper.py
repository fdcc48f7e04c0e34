"""The process between a run and a program: it starts the program, and ends it with everything that it has started.

Its argument is the descriptor of a socket. It reads one line of JSON, ``{"argv", "env", "cwd"}``, and writes one when
the program has ended or could not be started. The end of the socket, which the death of the run is too, ends the
program: first by SIGTERM, then for good. Nothing that the program has left running outlives this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

from k2jax.files.process_tree import adopt_orphans, die_with_parent, kill_descendants

GRACE = 5.0
"""Time of a program from SIGTERM to its end [s]."""


def main() -> None:
    """Keeps one program."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the terminal's interrupt is the run's business
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    with socket.socket(fileno=int(sys.argv[1])) as run:
        request = json.loads(run.makefile("rb").readline())
        try:
            program = subprocess.Popen(
                request["argv"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_begin,
            )
        except (OSError, ValueError) as error:
            _tell(run, {"error": str(error)})
            return
        ended = os.pidfd_open(program.pid)
        waiting = select.poll()  # select knows no descriptor beyond 1,023
        waiting.register(run, select.POLLIN)
        waiting.register(ended, select.POLLIN)
        if ended not in dict(waiting.poll()):
            _end(program)
        code = program.wait()
        kill_descendants()  # before the run hears of the end, so that nothing is left when it does
        _tell(run, {"code": code})


def _begin() -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _end(program: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
    try:
        program.wait(GRACE)
    except subprocess.TimeoutExpired:
        program.kill()


def _tell(run: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # the run is gone
        run.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
    os._exit(0)
