"""PTX: beside the reward, the likelihood of a curated set (Kimi K2, section 3.2.3)."""

from __future__ import annotations

import operator

import jax

from k2jax.batch import PackedBatch
from k2jax.config.schema import IMAGE_SOURCES, Config
from k2jax.data import TrainingData
from k2jax.errors import UserError
from k2jax.losses.base import Loss
from k2jax.losses.ptx import PTX as PTXTerm
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.packing.rows import ptx_row
from k2jax.rl.packing.training_paths import replayed_routes
from k2jax.train.corpus import ptx_data


class PTXRows(Method):
    """Adds rows of the curated set to those of every update.

    Args:
        config: the experiment.
        data: of which this process reads all rows.
    """

    def __init__(self, config: Config, data: TrainingData):
        self._updates, self._data, self._routes = config.rl.updates, data, replayed_routes(config)

    @staticmethod
    def used(config: Config) -> bool:
        """Whether PTX has a coefficient."""
        return bool(config.rl.loss.ptx)

    @staticmethod
    def check(config: Config) -> None:
        """Rejects images in the curated set; raises UserError."""
        shown = [name for name, source in config.data.sources.items() if source.kind in IMAGE_SOURCES]
        if config.rl.loss.ptx and shown:
            raise UserError(f"config.rl.loss.ptx learns from text alone, and config.data.sources.{shown[0]} has images")

    @staticmethod
    def terms(config: Config) -> tuple[Loss, ...]:
        """Cross-entropy of the rows."""
        return (PTXTerm(config.rl.loss.ptx),)

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> PTXRows:
        """See ``Method``; the corpus is part of the run's identity."""
        data = ptx_data(parts.config, parts.tokenizer)
        parts.identity["corpus"] = data.fingerprint
        return cls(parts.config, data)

    def before_update(self, step: int, number: int, rows: list[PackedBatch]) -> list[PackedBatch]:
        """The rows, and those of the curated set that belong to this update."""
        batch = self._data.loader.batch((step - 1) * self._updates + number)
        more = [jax.tree.map(operator.itemgetter(row), batch) for row in range(len(batch.tokens))]
        return rows + [ptx_row(row, self._routes) for row in more]
