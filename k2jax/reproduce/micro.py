"""What the studies of post-training share: the configuration of the micro model, and that of a run by rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from k2jax.config import defaults
from k2jax.config.schema import EvalConfig
from k2jax.files.atomic import write_json_lines

BY_REWARDS = {
    "stage": "rl",
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule.warmup_steps": 2,
    "router.bias_rate": 0.0,
    "router.bias_rate_final": 0.0,
    "checkpoint.every": 10,
    "eval.rows": EvalConfig().rows,  # fine-tuning may have its own
}
"""Overrides of a run of reinforcement learning that starts from another run."""
NO_WAITING = {"rl.rollout.sampler": "workers", "rl.rollout.workers": 2}
"""Overrides of such a run whose sampler does not wait for the slowest episode."""


def micro_config(stage: str, steps: int) -> ConfigDict:
    """The micro model on text of bytes; runs by rewards override what ``BY_REWARDS`` names.

    Args:
        stage: of the first run, ``pretrain`` or ``sft``.
        steps: of the first run.
    """
    config = defaults(stage, model="micro")
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.data.held_out = 0.03
    config.train.batch_size = 16
    config.train.steps = steps
    config.optimizer.learning_rate = 1e-2
    config.router.bias_rate = 5e-2
    config.router.bias_rate_final = 1e-3
    config.eval.sample_tokens = 0
    config.checkpoint.every = 100
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    config.rl.skip_flat_groups = True
    return config


def write_data(workdir: Path, files: Mapping[str, Iterable[Any]]) -> None:
    """Writes files of JSON lines into a study's folder, by name; those that are there stay as they are."""
    for name, records in files.items():
        if not (workdir / name).exists():
            write_json_lines(workdir / name, records)
