"""What evaluations ask a model for, beside lm-eval's model ``hf``: SmolLM2, float32, the same texts on both sides.

lm-eval is in an environment of its own, whose Python $LM_EVAL_PYTHON names; its batch sizes are 1, 8 and auto, and the
best of them counts. Each kind has a row of seconds and one of processor seconds, those of all threads: on a machine
that others use the second says more. Texts differ from round to round, so that no prefix is known from the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import contextlib
import json
import os
from pathlib import Path
import statistics
import subprocess
import textwrap
import time
from typing import Any

import numpy as np

from k2jax.bench import lm_eval_hf
from k2jax.bench.timing import Row, cost_row
from k2jax.client import Sampling
from k2jax.convert.loading import tokenizer_of
from k2jax.convert.packaged import packaged_file
from k2jax.errors import UserError
from k2jax.inference.client import EngineClient
from k2jax.inference.loading import load_engine
from k2jax.inference.worker import Worker

NAME = "smollm2"
SIZES = (1, 8, "auto")
QUESTIONS, CHOICES, DOCUMENTS, PROMPTS, NEW = 8, 4, 8, 16, 32
KINDS = {
    "generate_until": f"{PROMPTS} answers of {NEW} tokens",
    "loglikelihood": f"{QUESTIONS} questions with examples, {CHOICES} choices each",
    "loglikelihood_rolling": f"rolling log-likelihood of {DOCUMENTS} documents",
}
PYTHON = "LM_EVAL_PYTHON"
TOLERANCE = 0.05
"""By which log-probabilities of the two sides may differ [nats]."""


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the seconds of each kind of request."""
    rows, text = [], Path(textwrap.__file__).read_text(encoding="utf-8")
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as opened:
        ours, theirs = _Ours(), _lm_eval(opened)
        opened.callback(ours.worker.stop)
        for kind, title in KINDS.items():
            spent: dict[Any, list[tuple[float, float]]] = {name: [] for name in ("ours", *SIZES)}
            for number in range(rounds + 1):
                asked = _asked(kind, text, rng)
                names = [*spent]
                for name in names[number % 4 :] + names[: number % 4]:
                    *seconds, numbers = ours(kind, asked) if name == "ours" else theirs(kind, name, asked)
                    if number:  # the first is for compilation
                        spent[name].append(tuple(seconds))
                    elif name == "ours":
                        first = numbers
                    else:
                        second = numbers
                if not number and kind != "generate_until":
                    np.testing.assert_allclose(first, second, atol=TOLERANCE)
            for index, unit in enumerate(("s", "s of processors")):
                medians = {name: statistics.median(each[index] for each in pairs) for name, pairs in spent.items()}
                best = min(SIZES, key=medians.__getitem__)
                rows.append(cost_row(f"SmolLM2, {title}", medians["ours"], medians[best], unit, f"lm-eval hf, {best}"))
    return rows


def _asked(kind: str, text: str, rng: np.random.Generator) -> list[list[Any]]:
    """Requests of a kind, as lm-eval has them: cuts of a text, each behind a number of its own."""

    def cut(length: int) -> str:
        start = int(rng.integers(0, len(text) - length))
        return f"Number {rng.integers(10**6)}: {text[start : start + length]}"

    if kind == "generate_until":
        return [[cut(250), NEW] for _ in range(PROMPTS)]
    if kind == "loglikelihood_rolling":
        return [[cut(1200)] for _ in range(DOCUMENTS)]
    questions = [cut(800) + "\nAnswer:" for _ in range(QUESTIONS)]
    return [[question, f" {cut(20)}"] for question in questions for _ in range(CHOICES)]


class _Ours:
    """An engine behind the client that evaluations use."""

    def __init__(self):
        self._tokenizer = tokenizer_of(NAME)
        self.worker = Worker(load_engine(NAME, slots=PROMPTS, max_length=lm_eval_hf.LONGEST))
        self._client = EngineClient(self.worker)

    def __call__(self, kind: str, asked: list[list[Any]]) -> tuple[float, float, list[float]]:
        """Seconds, processor seconds, and a number of each answer."""
        wall, processor = time.perf_counter(), time.process_time()
        numbers = asyncio.run(self._answers(kind, asked))
        return time.perf_counter() - wall, time.process_time() - processor, numbers

    async def _answers(self, kind: str, asked: list[list[Any]]) -> list[float]:
        return list(await asyncio.gather(*(self._answer(kind, *each) for each in asked)))

    async def _answer(self, kind: str, text: str, more: Any = None) -> float:
        encode, bos, eos = self._tokenizer.encode, self._tokenizer.bos, self._tokenizer.eos
        if kind == "generate_until":
            sampling = Sampling(max_tokens=more, temperature=0.0, stop_tokens=(eos,))
            return len((await self._client.generate(encode(text), sampling)).tokens)
        if kind == "loglikelihood_rolling":
            return float((await self._client.score([bos, *encode(text)], 1)).sum(dtype=np.float64))
        ids = encode(text + more)
        return float((await self._client.score(ids, len(encode(text)))).sum(dtype=np.float64))


def _lm_eval(opened: contextlib.ExitStack) -> Callable[[str, Any, list[list[Any]]], list[Any]]:
    """What asks lm-eval: seconds, processor seconds, and a number of each answer."""
    python, path = os.environ.get(PYTHON), packaged_file(NAME)
    if not python:
        raise UserError(f"{PYTHON} must name the Python of an environment with torch, transformers, gguf and lm-eval")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = opened.enter_context(
        subprocess.Popen([python, "-P", lm_eval_hf.__file__], **pipes, env=environment | {"HF_HUB_OFFLINE": "1"})
    )
    opened.callback(process.terminate)

    def send(values: Any) -> None:
        process.stdin.write(json.dumps(values) + "\n")
        process.stdin.flush()

    def ask(kind: str, size: Any, asked: list[list[Any]]) -> list[Any]:
        with contextlib.suppress(BrokenPipeError):
            send([kind, size, asked])
        line = process.stdout.readline()
        if not line:
            raise UserError("lm-eval has ended; its message is above")
        return json.loads(line)

    send([str(path.parent), path.name])
    return ask
