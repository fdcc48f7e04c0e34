"""From the start of the server of SmolLM2 to the first token that a client gets, for the first and the second start.

The first start of a round has an empty folder of compiled programs, the second one has what the first has left. Every
server has its default flags and a process of its own, and is asked once, for one token. The seconds of a shared machine
depend on who shares it; the processor's time, that of all threads and of the orderly end, hardly does.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import tempfile
import time
from typing import NamedTuple

from k2jax.bench.serving import NAME, TEXT, server
from k2jax.bench.timing import Row
from k2jax.client import HTTPClient, Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.train.report import device_name


class Start(NamedTuple):
    """What the start of a server took, until a client had one token.

    Attributes:
        wall: time that passed [s].
        processor: time of all threads of the server [s].
    """

    wall: float
    processor: float


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the medians of the time that passed and of the processor's time."""
    prompt = tokenizer_of(NAME).encode(TEXT.format(1000))
    starts: list[tuple[Start, Start]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            starts.append((start_server(prompt, folder), start_server(prompt, folder)))
    rows, sides = [], list(zip(*starts, strict=True))
    for field, what in (("wall", "time"), ("processor", "processor's time")):
        first, second = (statistics.median(getattr(start, field) for start in side) for side in sides)
        title = f"SmolLM2 served, start to the first token after {len(prompt)}, {what}"
        rows.append(Row(title, second, first, first / second, "s", device_name(), "the first start"))
    return rows


def start_server(prompt: list[int], folder: str) -> Start:
    """Starts a server whose compiled programs are kept in a folder, asks it for one token, and ends it."""

    async def ask(url: str) -> None:
        async with HTTPClient(url, NAME) as client:
            await client.generate(prompt, Sampling(max_tokens=1, temperature=0.0))

    before, began = _processor_time(), time.perf_counter()
    with server(JAX_COMPILATION_CACHE_DIR=folder, JAX_ENABLE_COMPILATION_CACHE="true") as url:
        asyncio.run(ask(url))
        wall = time.perf_counter() - began
    return Start(wall, _processor_time() - before)


def _processor_time() -> float:
    """Of all processes that this one has started and that have ended [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
