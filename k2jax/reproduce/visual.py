"""What the studies of images and clips share: the micro model with a tower, and what it answers and earns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from k2jax.config.build import resolve, to_config_dict
from k2jax.config.presets import vision_preset
from k2jax.reproduce.micro import micro_config

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from k2jax.config import Config
    from k2jax.rl.groups import PromptGroup


def visual_config(stage: str, steps: int) -> ConfigDict:
    """The micro model with the nano tower on bytes, in batches of eight rows.

    Args:
        stage: of the first run.
        steps: of the first run.
    """
    config = micro_config(stage, steps)
    config.model.vision = to_config_dict(vision_preset("nano_vision"))
    config.model.vocab = 262  # bytes, two tokens around documents, four around images
    config.data.tokenizer.media = True
    config.data.images.patches = 96
    config.train.batch_size = 8
    config.optimizer.tower_rate = 0.3
    config.optimizer.projector_rate = 0.5
    config.checkpoint.every = 1000
    return config


def checkpoint_answers(
    config: Config, checkpoint: Path, contents: Sequence[Sequence[Any]], max_tokens: int
) -> list[str]:
    """Greedy answers of a checkpoint to messages with images and clips, with a new engine.

    Args:
        config: of the run; its chat format, and the length of its rows, which is that of a prompt at most.
        checkpoint: a workdir.
        contents: parts of each message.
        max_tokens: most tokens of an answer.
    """
    from k2jax.evaluate.pictures import greedy_answers, load_picture_reader

    return greedy_answers(load_picture_reader(checkpoint, config, max_tokens), contents, max_tokens)


def held_out_rewards(configs: Iterable[ConfigDict], checkpoint: Path) -> dict[str, float]:
    """``rewards_of`` a checkpoint's answers to held-out tasks.

    Args:
        configs: of the evaluations, see ``rl.evaluation.evaluate_checkpoint``.
        checkpoint: a workdir.
    """
    from k2jax.rl.evaluation import evaluate_checkpoint

    record = {}
    for config in configs:
        record |= rewards_of(evaluate_checkpoint(resolve(config), str(checkpoint))[1])
    return record


def rewards_of(groups: Iterable[PromptGroup]) -> dict[str, float]:
    """Mean rewards ``KIND/greedy`` and ``KIND/sampled`` by the tasks' domain, the latter of all samples."""
    rewards = defaultdict(list)
    for group in groups:
        kind = group.prompt.task.domain
        for number, trajectory in enumerate(group.trajectories):
            if trajectory.reward is not None:
                rewards[f"{kind}/{'sampled' if number else 'greedy'}"].append(trajectory.reward.value)
    return {key: float(np.mean(values)) for key, values in sorted(rewards.items())}
