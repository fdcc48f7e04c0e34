"""Generation speed of nano against transformers' ``generate`` on the same machine, greedy, float32.

Prefill is the time to the first token of every sequence, decode the time of the following tokens. The engine has the
slots and the longest sequence that a server has by default, and more slots for more sequences. The last row compares
the cache size of a token: the latent of Kimi K2 against the keys and values of multi-head attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from k2jax.bench.baseline import torch_model
from k2jax.bench.pretrain import EXPERT_IMPLEMENTATIONS
from k2jax.bench.timing import Row, cost_row, fastest, interleaved, rate_row
from k2jax.client import Sampling
from k2jax.config import ModelConfig, model_preset
from k2jax.inference.engine import Engine
from k2jax.model import model_specs
from k2jax.model.attention import attention_of
from k2jax.params import initialize

PROMPT, NEW = 64, 64  # tokens
SLOTS, MAX_LENGTH = 16, 4096  # the defaults of ``k2jax.serve``
BATCHES = (1, 16, 64)


def measure(rounds: int = 10) -> list[Row]:
    """Rows of prefill and decode tokens per second for each batch size, and of cache bytes per token."""
    model = model_preset("nano")
    rng = np.random.default_rng(0)
    rows = []
    for batch in BATCHES:
        prompts = rng.integers(0, model.vocab, (batch, PROMPT))
        name, theirs = _fastest(model, prompts)
        ours = _engine(model, prompts)
        seconds = interleaved(
            {
                f"{side}{new}": _call(run, new)
                for side, run in (("ours", ours), ("base", theirs))
                for new in (1, NEW + 1)
            },
            rounds,
        )
        for phase, tokens, time in (
            ("prefill", batch * PROMPT, lambda side, s=seconds: s[f"{side}1"]),
            ("decode", batch * NEW, lambda side, s=seconds: s[f"{side}{NEW + 1}"] - s[f"{side}1"]),
        ):
            title = f"nano {phase}, batch {batch}, {PROMPT} + {NEW} tokens"
            ours_rate, base_rate = tokens / time("ours"), tokens / time("base")
            rows.append(rate_row(title, ours_rate, base_rate, "tokens/s", f"transformers generate, {name}"))
    return [*rows, _cache_row()]


def _call(run: Callable[[int], Any], new: int) -> Callable[[], Any]:
    return lambda: run(new)


def _engine(model: ModelConfig, prompts: np.ndarray) -> Callable[[int], Any]:
    """Function that generates ``new`` tokens for every one of as many other prompts, so that no prefix is cached."""
    params = jax.jit(lambda: initialize(model_specs(model), jax.random.key(0), model.init_std))()
    engine = Engine(model, params, slots=max(SLOTS, len(prompts)), max_length=MAX_LENGTH)
    rng = np.random.default_rng(1)

    def run(new: int) -> Any:
        others = rng.integers(0, model.vocab, prompts.shape).tolist()
        return engine.generate(others, Sampling(max_tokens=new, temperature=0.0))

    return run


def _fastest(model: ModelConfig, prompts: np.ndarray) -> tuple[str, Callable[[int], Any]]:
    """Name and greedy decoding of transformers' fastest experts implementation."""
    candidates = {}
    for name in EXPERT_IMPLEMENTATIONS:
        torch, network = torch_model(model, name)
        inputs = torch.tensor(prompts)
        network.eval()

        def run(new: int, network=network, inputs=inputs, torch=torch) -> Any:
            with torch.inference_mode():
                return network.generate(inputs, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

        candidates[name] = run
    best = fastest({name: _call(run, 9) for name, run in candidates.items()})
    return f"experts {best}", candidates[best]


def _cache_row() -> Row:
    """Cache bytes per token of Kimi K2 in bfloat16, over all layers."""
    model = model_preset("k2")
    latent = 2 * model.layers * attention_of(model).cache_width(model)
    plain = 2 * model.layers * model.heads * (model.mla.qk_nope_dim + model.mla.qk_rope_dim + model.mla.v_dim)
    return cost_row("K2's cache, bfloat16", latent / 1e3, plain / 1e3, "kB/token", "multi-head", device="arithmetic")
