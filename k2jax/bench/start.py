"""The second start on a machine against the first: a server to its first token, a trainer to its first step.

The first start of a round has empty folders of compiled programs and prepared data, the second one has what the first
has left. Every process has its default flags. The server is that of SmolLM2 and is asked once, for one token; the
trainer is that of nano, in a new workdir each time. The seconds of a shared machine depend on who shares it; the
processor's time, that of all threads and of the orderly end, hardly does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import os
from pathlib import Path
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from k2jax.bench.serving import NAME, TEXT, server
from k2jax.bench.timing import Row, cost_row
from k2jax.client import HTTPClient, Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.errors import UserError
from k2jax.report.metrics import FILE

CONFIG = Path(__file__).parents[2] / "experiments" / "pretrain" / "nano.py"


class Start(NamedTuple):
    """What a start took.

    Attributes:
        wall: time that passed until there was a token, or a step [s].
        processor: time of all threads of the process [s].
    """

    wall: float
    processor: float


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the medians of the time that passed and of the processor's time."""
    prompt = tokenizer_of(NAME).encode(TEXT.format(1000))
    kinds: dict[str, Callable[[str], Start]] = {
        f"SmolLM2 served, start to the first token after {len(prompt)}": lambda cache: start_server(prompt, cache),
        "nano trained, start to the first step": start_trainer,
    }
    starts: dict[str, list[tuple[Start, Start]]] = {title: [] for title in kinds}
    for _ in range(rounds):
        for title, start in kinds.items():
            with tempfile.TemporaryDirectory() as cache:
                starts[title].append((start(cache), start(cache)))
    return [row for title, pairs in starts.items() for row in _rows(title, pairs)]


def _rows(title: str, pairs: list[tuple[Start, Start]]) -> list[Row]:
    rows = []
    for field, what in (("wall", "time"), ("processor", "processor's time")):
        first, second = (
            statistics.median(getattr(start, field) for start in side) for side in zip(*pairs, strict=True)
        )
        rows.append(cost_row(f"{title}, {what}", second, first, "s", "the first start"))
    return rows


def start_server(prompt: list[int], cache: str) -> Start:
    """Starts a server that keeps what it makes in a folder, asks it for one token, and ends it."""

    async def ask(url: str) -> None:
        async with HTTPClient(url, NAME) as client:
            await client.generate(prompt, Sampling(max_tokens=1, temperature=0.0))

    before, began = _processor_time(), time.perf_counter()
    with server(**_kept_in(cache)) as url:
        asyncio.run(ask(url))
        wall = time.perf_counter() - began
    return Start(wall, _processor_time() - before)


def start_trainer(cache: str) -> Start:
    """Starts a training that keeps what it makes in a folder, and kills it when its first step is logged.

    Raises:
        UserError: it ends before.
    """
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / FILE
        command = [sys.executable, "-m", "k2jax.train", f"--config={CONFIG}"]
        command += [f"--workdir={metrics.parent}", "--config.log.every=1"]
        before, began = _processor_time(), time.perf_counter()
        with subprocess.Popen(command, env=os.environ | _kept_in(cache), stdout=subprocess.DEVNULL) as process:
            while not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.01)
                if process.poll() is not None:
                    raise UserError("the training did not start; its message is above")
            wall = time.perf_counter() - began
            process.kill()
        return Start(wall, _processor_time() - before)


def _kept_in(cache: str) -> dict[str, str]:
    """The environment of a process that keeps compiled programs and prepared data in a folder, and nowhere else."""
    programs = {"JAX_COMPILATION_CACHE_DIR": f"{cache}/compiled", "JAX_ENABLE_COMPILATION_CACHE": "true"}
    return programs | {"K2JAX_CACHE": cache}


def _processor_time() -> float:
    """Processor time of all processes that this one has started and that have ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
