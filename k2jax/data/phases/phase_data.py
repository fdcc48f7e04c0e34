"""All data of a run with phases, prepared from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from k2jax.config.schema import IMAGE_SOURCES, DataConfig
from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.phases.phased_loader import LoadedPhase, PhasedLoader
from k2jax.data.phases.source_order import next_rows, source_orders
from k2jax.data.training_data import (
    ImageShape,
    TrainingData,
    build_sources,
    fingerprint_of,
    image_batches,
    rows_of_split,
)
from k2jax.data.vision_share import vision_share
from k2jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPhase:
    """What a phase asks of the data.

    Attributes:
        name: of the phase.
        first: steps of the run before it.
        last: its last step, counted from 1.
        config: the ``data`` group of its configuration.
        batch_size: rows of an optimizer step over all processes.
        local_rows: rows of a batch that this process reads, all by default.
        images: of a model with vision.
    """

    name: str
    first: int
    last: int
    config: DataConfig
    batch_size: int
    local_rows: Sequence[int] | None = None
    images: ImageShape | None = None


def prepare_phases(config: DataConfig, phases: Sequence[DataPhase], *, seed: int, **options: Any) -> list[TrainingData]:
    """Prepares tokenizer and shards once, and plans the batches of all phases.

    Args:
        config: the ``data`` group of the run, with all its sources.
        phases: in order.
        seed: seed of the order of rows.
        **options: ``tokenizer``, ``builder``, ``log`` and ``wait_seconds`` of ``prepare_data``.

    Returns:
        The data of every phase: the loader, that of all phases by the steps of the run, and held-out rows of all
        sources of the run, as long as the phase's rows.

    Raises:
        UserError: as of ``prepare_data``.
    """
    first = phases[0].images
    tokenizer, shards = build_sources(config, vision=None if first is None else first.vision, **options)
    texts = {name: source.train for name, source in shards.items() if config.sources[name].kind not in IMAGE_SOURCES}
    orders = source_orders(texts, seed)
    loaded = []
    for phase in phases:
        try:
            loaded.append(_loaded(phase, shards, orders, seed))
        except UserError as error:
            raise UserError(f"in phase {phase.name}: {error}") from None
    loader = PhasedLoader(loaded, sorted(config.sources))
    manifests = {name: source.manifest for name, source in shards.items()}
    fingerprint = fingerprint_of(tokenizer, shards, loader.identity)
    return [
        TrainingData(tokenizer, loader, _held_out(config, phase, shards), manifests, fingerprint) for phase in phases
    ]


def _loaded(phase: DataPhase, shards: Any, orders: Any, seed: int) -> LoadedPhase:
    config, steps = phase.config, phase.last - phase.first
    rows: dict[str, Any] = next_rows(orders, config, steps * phase.batch_size)
    parts = {name: part.size / part.stream.tokens for name, part in rows.items()}
    for name in sorted(config.sources):
        if name not in orders:  # all its rows, in an order of the phase's own
            rows[name], parts[name] = rows_of_split(config, name, shards[name], TRAIN), 1.0
    # A limit of passes over a source has become one of the rows that are left of it.
    sources = {
        name: dataclasses.replace(config.sources[name], max_epochs=1.0 if config.sources[name].max_epochs else 0.0)
        for name in rows
    }
    loader = DataLoader(
        rows,
        sources,
        batch_size=phase.batch_size,
        seed=seed + phase.first,
        steps=steps,
        local_rows=phase.local_rows,
        images=image_batches(phase.images),
        workers=config.workers,
        vision_share=vision_share(config),
    )
    return LoadedPhase(phase.first, phase.last, loader, parts)


def _held_out(config: DataConfig, phase: DataPhase, shards: Any) -> HeldOut:
    own = dataclasses.replace(phase.config, sources=config.sources)
    rows = {name: rows_of_split(own, name, source, HELD_OUT) for name, source in shards.items()}
    return HeldOut(rows, local_rows=phase.local_rows, images=image_batches(phase.images))
