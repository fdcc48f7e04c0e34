"""What an attack is: a row of the list of faults, a name, what is right, and a function that tries it."""

from collections.abc import Awaitable, Callable
import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

from k2jax.agents.sandbox.types import SandboxBackend

BACKENDS = {"bwrap": "bubblewrap", "nsjail": "nsjail"}
"""Backends by the names of the command line."""
Target = Literal["host", "gateway", "serve", "environments"]
"""Who is attacked: a process that runs tasks and reads data, or a server's command."""


class Place(NamedTuple):
    """Where an attack on a process that runs tasks happens.

    Attributes:
        backend: of sandboxes, open and used once.
        name: of the backend.
        folder: for files of the attack.
        prepared: what the attack's ``prepare`` has returned for the folder.
    """

    backend: SandboxBackend
    name: str
    folder: Path
    prepared: Any = None


class Outcome(NamedTuple):
    """What came of an attack.

    Attributes:
        wrong: what happened instead of the right thing; empty where it was right.
        statuses: of all answers of servers.
    """

    wrong: str = ""
    statuses: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        row: number of the fault in the list.
        name: what is tried.
        right: what has to happen.
        run: tries it; a coroutine function of a ``Place``, or of a server a function of a ``Server``.
        prepare: makes what ``run`` needs, in another process, so that its memory is not this one's; None for nothing.
        target: who is attacked.
        in_sandbox: whether it is tried with each backend.
        seconds: that it may take.
    """

    row: int
    name: str
    right: str
    run: Callable[[Any], Awaitable[Outcome]] | Callable[[Any], Outcome]
    _: dataclasses.KW_ONLY
    prepare: Callable[[Path], Any] | None = None
    target: Target = "host"
    in_sandbox: bool = False
    seconds: float = 120.0

    @property
    def label(self) -> str:
        """The row and the name."""
        return f"{self.row} {self.name}"


def expect(true: object, words: str) -> Outcome:
    """Right where something is true, else wrong in these words."""
    return Outcome() if true else Outcome(words[:300])
