"""A token of an answer that obeys a grammar beside one of any text: SmolLM2's sizes and vocabulary, random weights.

The baseline generates as many tokens for as many sequences. Each way of constraining them is a row: JSON by a schema,
whose mask is computed for every token, and calls of tools behind a token that does not come, which bans a few ids. Rows
of processor time, that of all threads, also hold on a machine that others use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from k2jax.bench.timing import Row, cost_row, interleaved_spent
from k2jax.client import Sampling, TokenConstraint
from k2jax.config import model_preset
from k2jax.convert.loading import tokenizer_of
from k2jax.inference.engine import Engine
from k2jax.model import model_specs
from k2jax.params import initialize
from k2jax.text.constrained import Grammars, schema_rule

PROMPT, NEW = 16, 32  # tokens
BATCHES = (1, 8)
MAX_LENGTH = 1024
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2000},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
        "size": {"type": "number"},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
_LIST = {"type": "array", "minItems": 200, "items": {"type": "object", "additionalProperties": {"type": "number"}}}


def measure(rounds: int = 10) -> list[Row]:
    """Rows of the milliseconds of a token for each batch size and constraint."""
    model, tokenizer = model_preset("smollm2_135m"), tokenizer_of("smollm2")
    params = jax.jit(lambda: initialize(model_specs(model), jax.random.key(0), model.init_std))()
    engine = Engine(model, params, slots=max(BATCHES), max_length=MAX_LENGTH)
    engine.grammars = Grammars(tokenizer, model.vocab)
    constraints = {
        "free": None,
        "JSON, a long text": TokenConstraint("start: value\n" + schema_rule("value", _SCHEMA, "schema")),
        "JSON, a list of objects": TokenConstraint("start: value\n" + schema_rule("value", _LIST, "schema")),
        "calls behind a token": TokenConstraint('start: "x"\n', tokenizer.eos, (tokenizer.eos,)),
    }
    rng = np.random.default_rng(0)

    def run(batch: int, new: int, constraint: TokenConstraint | None) -> None:
        prompts = rng.integers(0, model.vocab, (batch, PROMPT)).tolist()
        asked = [Sampling(max_tokens=new, seed=int(rng.integers(2**31)), constraint=constraint) for _ in prompts]
        assert all(len(request.tokens) == new for request in engine.generate(prompts, asked))

    rows = []
    for batch in BATCHES:
        candidates: dict[str, Callable[[], Any]] = {
            f"{name}{new}": lambda new=new, each=each: run(batch, new, each)  # noqa: B023, called in this turn
            for name, each in constraints.items()
            for new in (1, NEW + 1)
        }
        spent = interleaved_spent(candidates, rounds)
        for index, unit in enumerate(("ms/token", "ms of processors/token")):
            whole, first = ({name: spent[f"{name}{new}"][index] for name in constraints} for new in (NEW + 1, 1))
            cost = {name: 1e3 * (whole[name] - first[name]) / NEW for name in constraints}
            for name in list(constraints)[1:]:
                title = f"SmolLM2, batch {batch}: {name}"
                rows.append(cost_row(title, cost[name], cost["free"], unit, "any text"))
    return rows
