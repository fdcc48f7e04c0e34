"""SmolLM2 behind the server with its default flags, against transformers' ``generate``, greedy, float32.

A stream is one client of ``python -m k2jax.serve`` in a process of its own; transformers gets as many rows in one
batch. Both rates count the generated tokens of whole requests, prefill included. Prompts differ from call to call, so
that no prefix is cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
import contextlib
import os
import subprocess
import sys
from typing import Any

import numpy as np

from k2jax.bench.timing import Row, interleaved, rate_row
from k2jax.client import HTTPClient, Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.convert.packaged import packaged_file
from k2jax.errors import UserError

NAME, NEW = "smollm2", 64
TEXT = "Number {} of the letters that she wrote from the harbour in that winter begins with the weather, and goes on"
STREAMS = (1, 16)


def measure(rounds: int = 10) -> list[Row]:
    """Rows of generated tokens per second for each number of streams."""
    tokenizer = tokenizer_of(NAME)
    rng = np.random.default_rng(0)

    def prompts(streams: int) -> list[list[int]]:
        return [tokenizer.encode(TEXT.format(number)) for number in rng.integers(1000, 10_000, streams)]

    theirs = _transformers()
    rows = []
    with server() as url:
        for streams in STREAMS:
            counts: list[int] = []
            seconds = interleaved(
                {
                    "ours": lambda n=streams, counts=counts: counts.append(asyncio.run(_ask(url, prompts(n)))),
                    "base": lambda n=streams: theirs(prompts(n)),
                },
                rounds,
            )
            ours, base = np.median(counts) / seconds["ours"], streams * NEW / seconds["base"]
            title = f"SmolLM2 served, {streams} stream{'s' * (streams > 1)}, {len(prompts(1)[0])} + {NEW} tokens"
            rows.append(rate_row(title, ours, base, "tokens/s", "transformers generate"))
    return rows


async def _ask(url: str, prompts: list[list[int]]) -> int:
    """Sends all prompts at once; returns the number of tokens that came back."""
    async with HTTPClient(url, NAME) as client:
        calls = (client.generate(prompt, Sampling(max_tokens=NEW, temperature=0.0)) for prompt in prompts)
        return sum(len(completion.tokens) for completion in await asyncio.gather(*calls))


@contextlib.contextmanager
def server(**environment: str) -> Iterator[str]:
    """A server with its default flags on a free port, with more variables in its environment; gives its URL."""
    command = [sys.executable, "-m", "k2jax.serve", f"--checkpoint={NAME}", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise UserError("the server did not start; its message is above")
            yield line.split()[-1].removesuffix("/v1")
        finally:
            process.terminate()


def _transformers() -> Any:
    """Greedy generation for prompts of one length."""
    try:
        import torch
        from transformers import LlamaForCausalLM
    except ImportError as error:
        raise UserError('the baseline needs torch and transformers: pip install -e ".[parity]"') from error
    torch.set_num_threads(os.cpu_count() or 1)
    path = packaged_file(NAME)
    network = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def generate(prompts: list[list[int]]) -> Any:
        ids, options = torch.tensor(prompts), {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
        with torch.inference_mode():
            return network.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)

    return generate
