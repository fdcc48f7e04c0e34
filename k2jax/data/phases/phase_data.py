"""All data of a run with phases, prepared from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from k2jax.config.schema import IMAGE_SOURCES, DataConfig
from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.phases.phase_sources import phase_sources
from k2jax.data.phases.phased_loader import LoadedPhase, PhasedLoader
from k2jax.data.phases.source_order import next_rows, source_orders
from k2jax.data.training_data import (
    ImageShape,
    TrainingData,
    fingerprint_of,
    image_batches,
    rows_of_split,
)
from k2jax.data.vision_share import vision_share
from k2jax.errors import UserError

if TYPE_CHECKING:
    from k2jax.data.phases.phase_sources import Sources


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
        The data of every phase: the loader, that of all phases by the steps of the run, and held-out rows, as long as
        the phase's, of all texts of the run and of the sources with images that phases of its sizes read.

    Raises:
        UserError: as of ``prepare_data``.
    """
    vision = next((phase.images.vision for phase in phases if phase.images), None)
    tokenizer, shards = phase_sources(config, [phase.config for phase in phases], vision=vision, **options)
    texts = {name: of.train for name, of in shards[0].items() if config.sources[name].kind not in IMAGE_SOURCES}
    orders = source_orders(texts, seed)
    loaded = []
    for phase, own in zip(phases, shards, strict=True):
        try:
            loaded.append(_loaded(phase, own, orders, seed))
        except UserError as error:
            raise UserError(f"in phase {phase.name}: {error}") from None
    loader = PhasedLoader(loaded, sorted(config.sources))
    every, contents = _of_the_run(shards)
    fingerprint = fingerprint_of(tokenizer, contents, loader.identity)
    data = []
    for phase, own in zip(phases, shards, strict=True):
        manifests = {name: source.manifest for name, source in (every | own).items()}
        data.append(TrainingData(tokenizer, loader, _held_out(config, phase, own), manifests, fingerprint))
    return data


def _of_the_run(phases: Sequence[Sources]) -> tuple[Sources, Sources]:
    """Every source as the first phase has it that reads it, and beside these, under other names, as later ones do."""
    every: Sources = {}
    others: Sources = {}
    for number, sources in enumerate(phases):
        for name, source in sources.items():
            if every.setdefault(name, source) is not source and source not in others.values():
                others[f"{name} of phase {number}"] = source
    return every, every | others


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
    own = dataclasses.replace(phase.config, sources={name: config.sources[name] for name in shards})
    rows = {name: rows_of_split(own, name, source, HELD_OUT) for name, source in shards.items()}
    return HeldOut(rows, local_rows=phase.local_rows, images=image_batches(phase.images))
