"""The engines that a run starts itself, on its own machine: they join like any other, and end with the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
import subprocess
import sys

from k2jax.cli import USER_ERROR
from k2jax.errors import UserError
from k2jax.rl.engines.run_record import FOLDER
from k2jax.trajectory.steps import POLICY

RESTARTS = 3
"""Deaths of an engine between two versions of the weights after which it is not started again."""

END_SECONDS = 10.0
"""Time that an engine has to end [s]."""


class OwnEngines:
    """Processes of ``python -m k2jax.rollout engine``; one that dies is replaced.

    Args:
        workdir: of the run.
        count: how many there are.
        say: prints a line.
        roles: frozen ones, each of which gets one at first; the others are the policy's.
    """

    def __init__(self, workdir: Path, count: int, say: Callable[[str], None], roles: Sequence[str] = ()):
        self._workdir, self._say = workdir, say
        self._roles = [*[POLICY] * (count - len(roles)), *roles]
        self._deaths, self._version = [0] * count, None
        self._processes = [self._start(number) for number in range(count)]

    def look(self, version: int | None) -> None:
        """Replaces those that have died; ``version`` is what the run has published last.

        Raises:
            UserError: one of them refuses to work, or has died too often.
        """
        if version != self._version:
            self._version, self._deaths = version, [0] * len(self._deaths)
        for number, process in enumerate(self._processes):
            if process.poll() is None:
                continue
            self._deaths[number] += 1
            log = self._log(number)
            if process.returncode == USER_ERROR or self._deaths[number] > RESTARTS:
                raise UserError(f"an engine of the run has ended with {_last_line(log)!r}; see {log}")
            self._say(f"an engine of the run has ended with code {process.returncode}, and is started again; see {log}")
            self._processes[number] = self._start(number)

    def close(self) -> None:
        """Ends all."""
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, number: int) -> Path:
        return self._workdir / FOLDER / f"engine-{number}.log"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "k2jax.rollout", "engine", f"--follow={self._workdir}", "--ends_with_input"]
        command += [f"--role={self._roles[number]}"]
        with open(self._log(number), "ab") as log:
            # A session of its own: an interrupt is the run's business.
            pipes = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log}
            return subprocess.Popen(command, start_new_session=True, **pipes)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "no word"
