"""What a token costs in engines of longer sequences: the same requests, with caches from 256 to 32,768 tokens a slot.

Decoding should follow the context in use, not the room that there is. The baseline is the engine of the shortest
sequences; a ratio of 1 is no cost at all. Every engine has the slots of a server, and the pages that a server has by
default: on a CPU at most a gibibyte, or one whole sequence. Requests of a round are equal, and other ones in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from k2jax.bench.decode import NEW, PROMPT, SLOTS
from k2jax.bench.serving import NAME
from k2jax.bench.timing import Row, cost_row, interleaved
from k2jax.client import Sampling
from k2jax.config import ModelConfig, model_preset
from k2jax.convert.loading import load_pretrained
from k2jax.inference.engine import Engine
from k2jax.model import model_specs
from k2jax.params import initialize

LENGTHS = (256, 4096, 32_768)
BATCHES = (1, 16)


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the time of a decoded token, for each model, batch and longest sequence but the shortest."""
    nano = model_preset("nano")
    params = jax.jit(lambda: initialize(model_specs(nano), jax.random.key(0), nano.init_std))()
    loaded = load_pretrained(NAME)
    return [*_rows("nano", nano, params, rounds), *_rows("SmolLM2", loaded.model, loaded.params, rounds)]


def _rows(name: str, model: ModelConfig, params: Any, rounds: int) -> list[Row]:
    engines = {length: Engine(model, params, slots=SLOTS, max_length=length) for length in LENGTHS}
    rows = []
    for batch in BATCHES:
        candidates = {
            f"{length} {new}": _generation(engine, batch, new)
            for length, engine in engines.items()
            for new in (1, NEW + 1)
        }
        seconds = interleaved(candidates, rounds)
        token = {length: 1e3 * (seconds[f"{length} {NEW + 1}"] - seconds[f"{length} 1"]) / NEW for length in LENGTHS}
        for length in LENGTHS[1:]:
            title = f"{name} decodes, batch {batch}, {PROMPT} + {NEW} tokens, max_length {length:,}"
            baseline = f"max_length {LENGTHS[0]}"
            rows.append(cost_row(title, token[length], token[LENGTHS[0]], "ms/token", baseline))
    return rows


def _generation(engine: Engine, batch: int, new: int) -> Callable[[], Any]:
    """Generates greedily after prompts that differ from call to call, so that no prefix is cached."""
    rng = np.random.default_rng(0)

    def run() -> Any:
        prompts = rng.integers(0, engine.model.vocab, (batch, PROMPT)).tolist()
        return engine.generate(prompts, Sampling(max_tokens=new, temperature=0.0))

    return run
