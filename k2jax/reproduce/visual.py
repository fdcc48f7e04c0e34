"""What the studies of images and clips share: the micro model with a tower, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k2jax.config.build import to_config_dict
from k2jax.config.presets import vision_preset
from k2jax.reproduce.micro import micro_config

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from k2jax.config import Config


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
