"""Where engines find the run that they follow: a file in its workdir, which nobody but its user can read.

It is there until the run ends by itself, and has an address from the first version of the weights on. Of a run that was
killed it stays behind; nobody listens there then, and the next start replaces it. Of a run that has come to its end
a mark stays behind until the next start, so that an engine that starts late does not wait for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

from k2jax.agents.collect.wire import VERSION
from k2jax.errors import UserError

FOLDER = "engines"
"""Folder of a workdir with this file and what engines print."""
_FILE, _DONE = "run.json", "done"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RunRecord(NamedTuple):
    """A run that engines can join.

    Attributes:
        machine: names the machine until it starts anew.
        socket: address for engines of this machine, see ``EngineAddress``; empty while there are no weights yet.
        listen: address for engines of other machines, with the run's key; empty where they cannot join.
        dtype: of the weights, in which engines compute.
        weights: HOST:PORT of every process of the run that gives its part of the weights to engines of other machines.
    """

    machine: str
    socket: str = ""
    listen: str = ""
    dtype: str = ""
    weights: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether the run is on this machine."""
        return self.machine == this_machine()

    @classmethod
    def read(cls, workdir: Path) -> Self | None:
        """The record of the run in a workdir; None where there is none.

        Raises:
            UserError: the run speaks another version of the wire than this process.
        """
        try:
            values = json.loads((workdir / FOLDER / _FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if values.pop("wire") != VERSION:
            raise UserError(f"the run of {workdir} is one of another k2jax; start engine and run with the same")
        return cls(**values)._replace(weights=tuple(values["weights"]))

    def for_all_processes(self) -> dict[str, Any]:
        """What all processes of an engine are told of it; who joins with its key is the first one alone."""
        return self._replace(socket="", listen="")._asdict()

    def write(self, workdir: Path) -> None:
        """Replaces the record of a workdir at once."""
        (workdir / FOLDER).mkdir(mode=0o700, exist_ok=True)
        path = workdir / FOLDER / _FILE
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"wire": VERSION, **self._asdict()}, file)
        new.rename(path)
        (workdir / FOLDER / _DONE).unlink(missing_ok=True)


def remove_record(workdir: Path, *, is_done: bool = False) -> None:
    """Tells engines that there is no run in a workdir, or that it has come to its end and was not merely stopped."""
    if is_done:
        (workdir / FOLDER / _DONE).touch()
    (workdir / FOLDER / _FILE).unlink(missing_ok=True)


def is_done(workdir: Path) -> bool:
    """Whether the run of a workdir has come to its end, and has not been started again since."""
    return (workdir / FOLDER / _DONE).exists()


def this_machine() -> str:
    """A name of this machine, which it has until it starts anew."""
    return _BOOT.read_text(encoding="utf-8").strip()
