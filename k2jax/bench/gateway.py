"""The gateway: processor time that a request of an agent takes, beside that of an engine that answers it.

First a rollout asks alone after 132,000 tokens, give or take a tenth: a request in all and by stage, beside the second
request of a rollout, which has as much to say and little history. Stages are by the clocks of their threads.

Then 64 rollouts at a time ask in turns over HTTP, each time with their whole history, as agents do; the gateway is a
process of its own, logs every request, and the model behind it answers at once from a script. Beside it stands the
engine alone with prompts of the same lengths that begin alike, so that its cached prefixes count, on a randomly
initialised micro model: a model worth training takes longer. Times are of all threads of a process, so that what else
runs on the machine does not count.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import httpx
import jax
import numpy as np

from k2jax.bench.gateway_process import ANSWER, OPERATOR, STAGES
from k2jax.bench.timing import Row, time_row
from k2jax.client import Sampling
from k2jax.config import defaults, replace_keys, resolve
from k2jax.convert.loading import tokenizer_of
from k2jax.errors import UserError
from k2jax.inference import Engine
from k2jax.model import model_specs
from k2jax.params import initialize

ROLLOUTS, TURNS, MAX_LENGTH = 64, 4, 4096
SCORED = 8
"""Rollouts of these that the engine answers, whose times differ little."""
SYSTEM, TASK = "You are an agent that mends programs. " * 100, "Mend the bug in main.py. " * 10
OUTPUT = "a line of the output of a command\n" * 60
SECONDS = 600.0  # that a request may take
LONG_TURNS = 90
"""Turns of the long history: of each an answer, and a file's lines as a command prints them."""
LINES = 170
"""Lines of such an output: some 1,300 tokens. The first one is another in each turn."""


def measure(rounds: int = 10) -> list[Row]:
    """Rows for whole and streamed answers: milliseconds of processor time per request."""
    tokenizer = tokenizer_of("smollm2")
    with gateway_process() as url:
        rows = asyncio.run(_rows_of_long_history(url, 2 * rounds))
    times: dict[bool, list[float]] = {False: [], True: []}
    with gateway_process() as url:
        for _ in range(1 + rounds):
            for stream in times:
                seconds, lengths = asyncio.run(ask_in_turns(url, stream))
                times[stream].append(seconds)
    answer = len(tokenizer.encode(ANSWER)) + 1
    engine = _engine_seconds(lengths, answer, tokenizer.vocab_size)
    name = f"{ROLLOUTS} rollouts, prompts of {lengths[0]} to {lengths[-1]}, answers of {answer} tokens"
    return rows + [
        time_row(f"{name}, {kind}", statistics.median(times[stream][1:]), engine, "engine, micro model")
        for stream, kind in ((False, "whole"), (True, "streamed"))
    ]


@contextlib.contextmanager
def gateway_process() -> Iterator[str]:
    """A gateway in a process of its own; gives its URL."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "k2jax.bench.gateway_process", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                line = process.stdout.readline()  # type: ignore[union-attr]
                if not line:
                    raise UserError("the gateway did not start; its message is above")
                yield line.split()[-1]
            finally:
                process.terminate()


async def ask_in_turns(url: str, stream: bool, rollouts: int = ROLLOUTS) -> tuple[float, list[int]]:
    """Lets rollouts ask at the same time, each in turns.

    Args:
        url: of the gateway.
        stream: whether answers are streamed.
        rollouts: number of rollouts.

    Returns:
        Processor time of the gateway per request [s], and the length of a prompt of each turn [tokens].
    """
    limits = httpx.Limits(max_connections=rollouts)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=SECONDS) as http:
        body = {"task": "t", "declares_tools": False}
        opened = [(await _post(http, "/rollouts", OPERATOR, body)).json() for _ in range(rollouts)]
        began = (await _spent(http))["total"]
        lengths = await asyncio.gather(*(_converse(http, access, stream) for access in opened))
        return ((await _spent(http))["total"] - began) / (rollouts * TURNS), lengths[0]


async def _converse(http: httpx.AsyncClient, access: dict[str, str], stream: bool) -> list[int]:
    """All turns of a rollout; returns the lengths of the prompts."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    lengths = []
    for turn in range(TURNS):
        body = {"model": "k2", "messages": messages, **options}
        response = await _post(http, f"{access['path']}/v1/chat/completions", access["key"], body)
        answer, usage = _streamed(response.text) if stream else _whole(response.json())
        lengths.append(usage["prompt_tokens"])
        messages = [
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"turn {turn}\n{OUTPUT}"},
        ]
    return lengths


async def ask_at_length(url: str, before: int, measured: int) -> tuple[list[dict[str, float]], list[int]]:
    """Lets a rollout ask alone, with a history that grows from turn to turn.

    Args:
        url: of the gateway.
        before: turns before the first that is measured.
        measured: turns that are.

    Returns:
        Of each measured request processor seconds of the gateway, ``total`` and by stage, and the tokens of its prompt.
    """
    lines = inspect.getsource(argparse).splitlines(keepends=True)
    spent, lengths = [], []
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
        access = (await _post(http, "/rollouts", OPERATOR, {"task": "t", "declares_tools": False})).json()
        asking = [_difference(await _spent(http), await _spent(http))["total"] for _ in range(20)]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
        for turn in range(before + measured):
            begun = await _spent(http)
            response = await _post(
                http, f"{access['path']}/v1/chat/completions", access["key"], {"model": "k2", "messages": messages}
            )
            taken = _difference(begun, await _spent(http))
            answer, usage = _whole(response.json())
            spent.append(taken | {"total": taken["total"] - statistics.median(asking)})
            lengths.append(usage["prompt_tokens"])
            printed = "".join(lines[(37 * turn + line) % len(lines)] for line in range(LINES))
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"{turn}\n{printed}"}]
    return spent[before:], lengths[before:]


async def _rows_of_long_history(url: str, measured: int) -> list[Row]:
    """Rows of requests of which the median one follows LONG_TURNS turns, beside rollouts that have just begun."""
    long, lengths = await ask_at_length(url, LONG_TURNS - measured // 2, measured)
    short = [(await ask_at_length(url, 1, 1))[0][0] for _ in range(measured)]
    for seconds in (*long, *short):
        seconds["the rest"] = seconds["total"] - sum(seconds.get(stage, 0.0) for stage in STAGES)

    def row(label: str, stage: str, among: Callable[[list[float]], float]) -> Row:
        ours, baseline = (among([seconds.get(stage, 0.0) for seconds in requests]) for requests in (long, short))
        name = f"a request after {lengths[0]:,} to {lengths[-1]:,} tokens, {label}"
        return time_row(name, ours, baseline, "the second of a rollout")

    rows = [row(f"least of {measured}", "total", min), row("total", "total", statistics.median)]
    return rows + [row(stage, stage, statistics.median) for stage in (*STAGES, "the rest")]


async def _spent(http: httpx.AsyncClient) -> dict[str, float]:
    return (await http.get("/processor_time")).json()


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


async def _post(http: httpx.AsyncClient, path: str, key: str, body: dict[str, Any]) -> httpx.Response:
    return (await http.post(path, json=body, headers={"Authorization": f"Bearer {key}"})).raise_for_status()


def _whole(body: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Text and usage of an answer."""
    return body["choices"][0]["message"]["content"], body["usage"]


def _streamed(text: str) -> tuple[str, dict[str, int]]:
    """Text and usage of a stream of events."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), events[-1]["usage"]


def _engine_seconds(lengths: Sequence[int], answer: int, vocab: int) -> float:
    """Processor time of the engine alone per request, without compiling.

    The prompts of a rollout begin with the one before, and the first one is that of all rollouts.
    """
    model = replace_keys(resolve(defaults("rl", model="micro")).model, {"vocab": vocab})
    engine = Engine(model, initialize(model_specs(model), jax.random.key(0), 0.02), slots=16, max_length=MAX_LENGTH)
    sampling, rng, seconds = Sampling(max_tokens=answer), np.random.default_rng(0), 0.0
    for _ in range(2):  # the first compiles
        ids_BS = rng.integers(vocab, size=(SCORED, lengths[-1]))
        ids_BS[:, : lengths[0]] = ids_BS[0, : lengths[0]]
        began = time.process_time()
        for length in lengths:
            engine.generate(ids_BS[:, :length].tolist(), sampling)
        seconds = time.process_time() - began
    return seconds / (SCORED * len(lengths))
