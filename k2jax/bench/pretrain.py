"""Training speed of nano against transformers' ``DeepseekV3ForCausalLM`` with torch's AdamW.

Both use the same configuration, batch, float32, AdamW, learning rate and all cores; compilation is excluded. The
baseline is the fastest of transformers' experts implementations.
"""

from __future__ import annotations

from collections.abc import Callable
import sys
from typing import Any

import jax
import numpy as np

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.bench.baseline import torch_model
from k2jax.bench.timing import Row, fastest, interleaved, rate_row
from k2jax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainConfig, model_preset
from k2jax.errors import UserError
from k2jax.train.program import Program

ROWS, SEQUENCE = 8, 256
EXPERT_IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")


def measure(rounds: int = 10) -> list[Row]:
    """One row, tokens per second of a complete step: forward, backward, clipping and update."""
    model = model_preset("nano")
    tokens = np.random.default_rng(0).integers(0, model.vocab, (ROWS, SEQUENCE))
    name, baseline = fastest_baseline(model, tokens)
    seconds = interleaved({"ours": jax_step(model, tokens), "baseline": baseline}, rounds)
    rates = tokens.size / seconds["ours"], tokens.size / seconds["baseline"]
    title = f"nano training, AdamW, {ROWS} x {SEQUENCE} tokens"
    return [rate_row(title, *rates, "tokens/s", f"transformers + torch, experts {name}")]


def fastest_baseline(model: ModelConfig, tokens: np.ndarray) -> tuple[str, Callable[[], Any]]:
    """Name and step of the experts implementation that is fastest in a few interleaved steps."""
    candidates = {}
    for name in EXPERT_IMPLEMENTATIONS:
        try:
            step = torch_step(model, tokens, name)
            step()
        except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
            print(f"transformers with experts {name} does not run: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        candidates[name] = step
    if not candidates:
        raise UserError('no experts implementation of transformers runs; pip install -e ".[parity]" pins one that does')
    best = fastest(candidates, rounds=3)
    return best, candidates[best]


def experiment(model: ModelConfig, optimizer: str = "adamw") -> Config:
    """Experiment that both sides run."""
    return Config(
        model=model,
        optimizer=OptimizerConfig(name=optimizer, learning_rate=1e-3, grad_clip=1.0),
        data=DataConfig(sequence_length=SEQUENCE),
        train=TrainConfig(batch_size=ROWS, steps=10_000),
    )


def packed(tokens: np.ndarray) -> PackedBatch:
    """Packs each row as one document."""
    return stack_rows([pack_row([row], SEQUENCE) for row in tokens])


def jax_step(model: ModelConfig, tokens: np.ndarray) -> Callable[[], Any]:
    """Function that runs one k2jax training step per call and keeps the state."""
    program = Program(experiment(model), jax.devices()[:1])
    state, batch = program.init(), program.batch_sharding().put(packed(tokens))

    def run() -> Any:
        nonlocal state
        state, metrics = program.step(state, batch)
        return metrics

    return run


def torch_step(model: ModelConfig, tokens: np.ndarray, experts: str) -> Callable[[], Any]:
    """Function that runs one training step of transformers per call.

    Raises:
        UserError: if the extra ``[parity]`` is not installed.
    """
    torch, network = torch_model(model, experts)
    adamw = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    inputs = torch.tensor(tokens)

    def run() -> Any:
        adamw.zero_grad()
        loss = network(inputs, labels=inputs, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adamw.step()
        return loss.item()

    return run
