"""Makes attacks, each on a new process, beside a control process that does nothing at the same time."""

from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
import socket
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from tests.hostile.attack import Attack, Outcome, Target
from tests.hostile.probe import VARIABLE, Channel
from tests.hostile.targets import Server

MEGA = 10**6
MOST_GROWTH = 300 * MEGA
"""Memory of the attacked process above what it had before [bytes]."""
MOST_STALL = 0.5
"""Time that the event loop stands still beyond that of the control [s]."""
TRIES = 3
"""How often an attack is made whose stall alone is too long: what the rest of the machine does is not made twice."""
_START = 300.0


class Result(NamedTuple):
    """One attack with one backend.

    Attributes:
        attack: which.
        backend: its name on the command line; empty where none is used.
        outcome: what came of it.
        growth: of the memory [bytes].
        stall: of the event loop [s].
        control: the same of the control process [s].
    """

    attack: Attack
    backend: str
    outcome: Outcome
    growth: float = 0.0
    stall: float = 0.0
    control: float = 0.0

    @property
    def errors_of_servers(self) -> int:
        """Answers of 5xx."""
        return sum(status >= 500 for status in self.outcome.statuses)

    @property
    def problem(self) -> str:
        """Which limit is broken, or what was wrong; empty for nothing."""
        if self.outcome.wrong:
            return self.outcome.wrong
        if self.growth > MOST_GROWTH:
            return f"memory grew by {self.growth / MEGA:.0f} MB"
        if self.stalls:
            return f"the event loop stood still for {self.stall:.2f} s, that of the control for {self.control:.2f} s"
        return f"{self.errors_of_servers} answers of 5xx" if self.errors_of_servers else ""

    @property
    def stalls(self) -> bool:
        """Whether the stall is too long."""
        return self.stall - self.control > MOST_STALL


class _Host:
    """A process of ``tests.hostile.host``."""

    def __init__(self, backend: str, attack: Attack | None = None):
        here, there = socket.socketpair()
        environment = os.environ | {VARIABLE: str(there.fileno())}
        chosen = [] if attack is None else [attack.run.__module__, attack.label]
        words = [sys.executable, "-m", "tests.hostile.host", backend, *chosen]
        with there:
            self._process = subprocess.Popen(
                words, env=environment, pass_fds=[there.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        here.settimeout(_START)
        self._socket, self._channel = here, Channel(here)
        if self._channel.receive() != "ready":
            raise RuntimeError(f"the process of {chosen or 'the control'} did not start: {self.close()}")

    def ask(self, words: str, seconds: float = _START) -> dict[str, Any]:
        """What it answers; empty where it has ended without an answer."""
        self._socket.settimeout(seconds)
        self._channel.send(words)
        with contextlib.suppress(TimeoutError):
            return self._channel.receive() or {}
        return {}

    def begin(self) -> None:
        self.ask("begin")

    def measured(self) -> dict[str, float]:
        return self.ask("measure")

    def close(self) -> str:
        """Ends it; the end of its error output."""
        self._process.kill()
        words = self._process.communicate()[1].decode(errors="replace").strip()[-300:]
        self._socket.close()
        return words


class Controls:
    """One idle process for each backend and each server, which is begun anew for every attack; ``with`` ends them."""

    def __enter__(self) -> "Controls":
        self._made: dict[str, _Host | Server] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="k2jax-hostile-")
        return self

    def __exit__(self, *error: object) -> None:
        for control in self._made.values():
            control.close()
        self._folder.cleanup()

    def of(self, target: Target, backend: str) -> "_Host | Server":
        """The control of a target."""
        name = backend if target == "host" else target
        if name not in self._made:
            self._made[name] = _Host(backend) if target == "host" else Server(target, Path(self._folder.name) / target)
        return self._made[name]


def run(attacks: Sequence[Attack], backends: Sequence[str]) -> Iterator[Result]:
    """Makes attacks, those in sandboxes with each backend."""
    with Controls() as controls:
        for attack in attacks:
            for backend in backends if attack.in_sandbox else backends[:1]:
                for _ in range(TRIES):
                    result = _made(attack, backend, controls)
                    if not result.stalls or result.outcome.wrong:
                        break
                yield result


def _made(attack: Attack, backend: str, controls: Controls) -> Result:
    control = controls.of(attack.target, backend)
    shown = backend if attack.in_sandbox else ""
    measured = (_on_host if attack.target == "host" else _on_server)(attack, backend, control)
    outcome = Outcome(measured.get("wrong", "the process died"), tuple(measured.get("statuses", ())))
    return Result(attack, shown, outcome, measured.get("growth", 0), measured.get("stall", 0), measured["control"])


def _on_host(attack: Attack, backend: str, control: Any) -> dict[str, Any]:
    host = _Host(backend, attack)
    control.begin()
    measured = host.ask("run", attack.seconds)
    idle = control.measured()["stall"]
    words = host.close()
    if not measured:
        measured = {"wrong": f"no outcome in {attack.seconds:g} s, or the process died: {words}"}
    return measured | {"control": idle}


def _on_server(attack: Attack, backend: str, control: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="k2jax-hostile-") as folder:
        server = Server(attack.target, Path(folder) / attack.target)
        try:
            server.begin()
            control.begin()
            try:
                outcome = attack.run(server)
            except (OSError, AssertionError, ValueError) as error:
                outcome = Outcome(f"{type(error).__name__}: {error}")
            measured, idle = server.measured(), control.measured()["stall"]
            if not outcome.wrong and not server.serves():
                outcome = outcome._replace(wrong="an ordinary request is not answered after it")
        finally:
            server.close()
    return measured | outcome._asdict() | {"control": idle}
