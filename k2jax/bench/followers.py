"""The command of an engine's step between two processes, and a model of it for 256 hosts.

The controller hashes what a step's program is given and sends the hash; the follower, a process of its own, hashes what
its own program is given, and compares. A step of 256 slots may cost 1 ms more by that. The model adds what the levels
of a tree of fan-out 8 cost, by what one connection of this machine takes; between hosts comes the network's own time.
"""

from __future__ import annotations

from collections.abc import Callable
import itertools
from pathlib import Path
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from k2jax.bench.timing import Row, cost_row
from k2jax.inference.decode import Continuation
from k2jax.inference.sampler import Choice
from k2jax.processes.command_links import HEARTBEAT
from k2jax.processes.command_tree import FAN_OUT, MessageTree
from k2jax.rl.followers.controller import Controller
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.follower import Follower

SLOTS, COLUMNS, HOSTS, ALLOWED = 256, 128, 256, 1.0
"""Sequences of a step, pages of each, hosts of the model, and time that a step's command may cost [ms]."""
STEPS = 200
"""Steps of a round."""


class _Folder:
    """Two processes that tell each other their addresses through a folder."""

    def __init__(self, folder: Path, index: int):
        self.index, self.count, self.news_seconds, self._folder = index, 2, 0.0, folder

    def tell(self, name: str, text: str) -> None:
        path = self._folder / name.replace("/", "-")
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def read(self, name: str, seconds: float) -> str:
        path, deadline = self._folder / name.replace("/", "-"), time.monotonic() + seconds
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return path.read_text()

    def broadcast_from_first(self, name: str, text: str) -> str:
        if self.index == 0:
            self.tell(name, text)
        return self.read(name, 60)

    def own_host(self) -> str:
        return "127.0.0.1"

    def stop_without(self, indices: list[int]) -> None:
        sys.exit(f"process {indices} is gone")


def step_inputs(slots: int) -> tuple[Continuation, Choice, int]:
    """What a step that generates is given, for so many sequences of 2,048 tokens."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.integers(0, 1 << 16, shape, dtype=np.int32)  # noqa: E731
    rows = Continuation(draw(slots), draw(slots), draw(slots), draw(slots, COLUMNS))
    tail = [np.ones(slots, np.float32)] * 3
    choice = Choice(*tail, draw(slots), seed=draw(slots).astype(np.uint32), index=draw(slots), alternatives=tail[0] > 2)
    return rows, choice, 16


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the controller's part, of both processes', and the model: medians of steps, the least of the rounds."""
    times = [run(SLOTS, STEPS) for _ in range(rounds)]
    least = {name: min(each[name] for each in times) for name in times[0]}
    levels = next(level for level in itertools.count() if sum(FAN_OUT**i for i in range(level + 1)) >= HOSTS)
    # One hop: what is left of a step without two hashes and the controller's sending.
    passed = max(0.0, least["whole"] - least["controller"] - least["hash"])
    modelled = least["whole"] + (levels - 1) * passed + levels * (FAN_OUT - 1) * least["send"]
    named = [
        (f"the controller's part of a step of {SLOTS} slots", least["controller"]),
        ("until the follower has compared it, and its answer", least["whole"]),
        (f"modelled: {HOSTS} hosts, {levels} levels of fan-out {FAN_OUT}", modelled),
    ]
    return [cost_row(name, value, ALLOWED, "ms", "allowed") for name, value in named]


def run(slots: int, steps: int) -> dict[str, float]:
    """Times of one step's command [ms]: ``controller``, ``whole``, and of these ``hash`` and ``send``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "k2jax.bench.followers", folder, str(slots), str(steps)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            inputs = step_inputs(slots)
            with MessageTree(_Folder(Path(folder), 0), "bench") as tree:
                commands, own, whole = Controller(tree), [], []
                for _ in range(steps):
                    began = time.perf_counter()
                    commands.write(0, "step")
                    commands.note_program(0, "decode", inputs)
                    own.append(time.perf_counter() - began)
                    child.stdout.read(1)
                    whole.append(time.perf_counter() - began)
                send = _times(lambda: tree._children[0].send(HEARTBEAT, bytes(300)), steps)
                commands.share(None)
            hashed = _times(lambda: digest_of(inputs), steps)
    per_step = {"controller": own, "whole": whole, "hash": hashed, "send": send}
    return {name: 1e3 * statistics.median(seconds) for name, seconds in per_step.items()}


def _times(function: Callable[[], Any], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return seconds


def _follow(folder: str, slots: int, steps: int) -> None:
    """The other process: an engine whose steps run one program."""
    inputs, programs = step_inputs(slots), SimpleNamespace(before=None)

    def step() -> None:
        programs.before("decode", inputs)
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()

    with MessageTree(_Folder(Path(folder), 1), "bench") as tree:
        commands = Follower(tree, sys.exit)
        commands.engine(SimpleNamespace(programs=programs, step=step))
        commands.share(None)


if __name__ == "__main__":
    _follow(sys.argv[1], *map(int, sys.argv[2:]))
