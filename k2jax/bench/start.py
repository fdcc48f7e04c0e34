"""From the start of the server of SmolLM2 to the first token that a client gets, for the first and the second start.

The first start of a round has an empty folder of compiled programs, the second one has what the first has left. Every
server has its default flags and a process of its own, and is asked once, for one token.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time

from k2jax.bench.serving import NAME, TEXT, server
from k2jax.bench.timing import Row
from k2jax.client import HTTPClient, Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.train.report import device_name


def measure(rounds: int = 10) -> list[Row]:
    """The row of both medians."""
    prompt = tokenizer_of(NAME).encode(TEXT.format(1000))
    seconds: dict[str, list[float]] = {"first": [], "second": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for start in seconds.values():
                start.append(first_token(prompt, folder))
    first, second = (statistics.median(each) for each in seconds.values())
    title = f"SmolLM2 served, start to the first token after {len(prompt)}"
    return [Row(title, second, first, first / second, "s", device_name(), "the first start")]


def first_token(prompt: list[int], folder: str) -> float:
    """Seconds until a new server, whose compiled programs are kept in a folder, has answered with one token."""

    async def ask(url: str) -> None:
        async with HTTPClient(url, NAME) as client:
            await client.generate(prompt, Sampling(max_tokens=1, temperature=0.0))

    began = time.perf_counter()
    with server(JAX_COMPILATION_CACHE_DIR=folder, JAX_ENABLE_COMPILATION_CACHE="true") as url:
        asyncio.run(ask(url))
        return time.perf_counter() - began
