"""What an attack costs the process that it is made on: memory, and turns of its event loop that come late."""

import asyncio
import contextlib
import json
from pathlib import Path
import socket
import threading
import time
from typing import Any

INTERVAL = 0.01
"""Time between two turns of the loop that are looked at [s]."""
VARIABLE = "K2JAX_HOSTILE_PROBE"
"""Descriptor of the socket over which a process is asked for its figures."""


class Probe:
    """The growth of this process's memory, and the longest pause of an event loop, since the beginning.

    A pause is measured in two ways. ``stall`` is wall time, without the time in which the loop's thread waited for a
    processor, because what else runs on the machine makes everybody wait. ``pause`` is processor time of the process.
    """

    def __init__(self):
        self._turn: tuple[float, float, float] | None = None
        self.begin()

    def begin(self) -> None:
        """Forgets what was."""
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark becomes what there is now
        self._before = _peak()
        self.pause = self.stall = 0.0

    def measured(self) -> dict[str, float]:
        """Figures since the beginning: ``growth`` [bytes], ``pause`` and ``stall`` [s]; it begins anew."""
        self._look()  # the loop may stand still at this moment
        measured = {"growth": _peak() - self._before, "pause": self.pause, "stall": self.stall}
        self.begin()
        return measured

    async def run(self) -> None:
        """Looks at every turn of the running loop, without end."""
        self._thread = threading.get_native_id()
        while True:
            self._turn = time.monotonic(), time.process_time(), self._waited()
            await asyncio.sleep(INTERVAL)
            self._look()

    def _look(self) -> None:
        if (turn := self._turn) is not None:
            late = time.monotonic() - turn[0] - INTERVAL - (self._waited() - turn[2])
            self.stall = max(self.stall, late)
            self.pause = max(self.pause, time.process_time() - turn[1])

    def _waited(self) -> float:
        """How long the loop's thread has been ready to run and was not run [s]."""
        with contextlib.suppress(OSError):  # a kernel that does not count it
            return int(Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()[1]) / 1e9
        return 0.0


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


class Channel:
    """One end of a socket over which processes exchange JSON, a value a line."""

    def __init__(self, sock: socket.socket):
        self._file = sock.makefile("rw", buffering=1)

    def send(self, value: Any) -> None:
        """Sends a value."""
        self._file.write(json.dumps(value) + "\n")

    def receive(self) -> Any:
        """The next value; None when the other end is closed."""
        line = self._file.readline()
        return json.loads(line) if line else None


def answer(channel: Channel, probe: Probe) -> None:
    """Answers ``begin`` and ``measure`` until the channel is closed; in a thread of its own."""
    while (asked := channel.receive()) is not None:
        if asked == "begin":
            probe.begin()
        channel.send(probe.measured() if asked == "measure" else {})


def answering(channel: Channel, probe: Probe) -> None:
    """Starts a thread that answers."""
    threading.Thread(target=answer, args=(channel, probe), daemon=True).start()
