"""All data of a training run, prepared from a configuration: tokenizer, training batches and validation batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from k2jax.config.fields import check_fields
from k2jax.config.schema import CONVERSATIONS, IMAGE_SOURCES, DataConfig, VisionConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.conversation_rows import ConversationRows
from k2jax.data.loader import DataLoader, HeldOut
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.named_shards import named_shards
from k2jax.data.packing import RowSource
from k2jax.data.preparation.choosing import check_steps
from k2jax.data.preparation.pools import TaskPool, open_pool
from k2jax.data.shards import Shards
from k2jax.data.vision_share import vision_share
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from k2jax.data.filled_mixture import SplitRows
    from k2jax.data.images.batches import ImageBatches
    from k2jax.data.images.corpus import VisualCorpus
    from k2jax.data.images.placement import PatchRows


class ImageShape(NamedTuple):
    """What a model with vision asks of its data.

    Attributes:
        vision: the tower.
        rows: static shape of a step's patches.
        local_rows: the rows of patches that this process computes, all by default.
    """

    vision: VisionConfig
    rows: PatchRows
    local_rows: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """Data of a training run.

    Attributes:
        tokenizer: tokenizer of the run.
        loader: training batches by step; of a run with phases a ``PhasedLoader``.
        held_out: validation batches.
        manifests: manifest of each source's folder of shards: counts, held-out statistics, skipped records.
        fingerprint: hash of the tokenizer and of all tokens of the corpus.
    """

    tokenizer: Tokenizer
    loader: DataLoader
    held_out: HeldOut
    manifests: dict[str, dict]
    fingerprint: str


def prepare_data(
    config: DataConfig,
    *,
    batch_size: int,
    seed: int,
    steps: int,
    local_rows: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
    images: ImageShape | None = None,
    builder: bool = True,
    log: Callable[[str], None] | None = None,
    wait_seconds: float = 3600.0,
) -> TrainingData:
    """Prepares tokenizer and shards, or reads them from the cache, and plans the batches of the run.

    One process builds missing folders of the cache; the others wait for them.

    Args:
        config: the ``data`` group of a configuration.
        batch_size: rows of an optimizer step over all processes.
        seed: seed of the order of rows.
        steps: optimizer steps of the run; the data must suffice for them.
        local_rows: indices of a batch's rows that this process reads, all by default; see ``DataLoader``.
        tokenizer: takes the place of the configured one, which is then not read.
        images: of a model with vision, whose batches all have ``media``; None of a model of text.
        builder: whether this process builds missing folders.
        log: receives lines of progress.
        wait_seconds: how long the other processes wait for each folder [s].

    Raises:
        UserError: if the configuration is invalid, a source or a record is unusable, the cache cannot be written,
            shards are damaged, or the data do not suffice for all steps.
    """
    options = {"builder": builder, "wait_seconds": wait_seconds, "log": log}
    vision = None if images is None else images.vision
    tokenizer, shards = build_sources(config, tokenizer=tokenizer, vision=vision, **options)
    batches = image_batches(images)
    loader = DataLoader(
        {name: rows_of_split(config, name, source, TRAIN) for name, source in shards.items()},
        config.sources,
        batch_size=batch_size,
        seed=seed,
        steps=steps,
        local_rows=local_rows,
        images=batches,
        workers=config.workers,
        vision_share=vision_share(config),
    )
    held_out = HeldOut(
        {name: rows_of_split(config, name, source, HELD_OUT) for name, source in shards.items()},
        local_rows=local_rows,
        images=batches,
    )
    manifests = {name: source.manifest for name, source in shards.items()}
    return TrainingData(tokenizer, loader, held_out, manifests, fingerprint_of(tokenizer, shards, loader.identity))


def build_sources(
    config: DataConfig,
    *,
    tokenizer: Tokenizer | None = None,
    vision: VisionConfig | None = None,
    pool: TaskPool | None = None,
    **options: Any,
) -> tuple[Tokenizer, dict[str, Shards | VisualCorpus]]:
    """The tokenizer and all sources of a configuration, from the cache or built now.

    Args:
        config: see ``prepare_data``.
        tokenizer: see ``prepare_data``.
        vision: the tower of a model with vision.
        pool: tokenises what is missing; None is processes on all cores.
        **options: ``builder``, ``wait_seconds`` and ``log`` of ``prepare_data``.

    Raises:
        UserError: as of ``prepare_data``, before any batch is planned.
    """
    check_fields(config, "data")  # Reject invalid values before the long work.
    if not config.sources:
        raise UserError("data.sources is empty: name at least one source")
    check_steps(config)
    tokenizer = tokenizer or prepare_tokenizer(config, **options)
    with contextlib.nullcontext(pool) if pool else open_pool() as workers:
        return tokenizer, {
            name: _prepare_source(name, config, tokenizer, vision, pool=workers, **options)
            for name in sorted(config.sources)
        }


def _prepare_source(
    name: str, config: DataConfig, tokenizer: Tokenizer, vision: VisionConfig | None, *, pool: TaskPool, **options: Any
) -> Shards | VisualCorpus:
    """A source in the cache, built if it is missing."""
    if config.sources[name].kind == "shards":
        return named_shards(name, config.sources[name], tokenizer)
    if config.sources[name].kind not in IMAGE_SOURCES:
        return prepare_shards(name, config, tokenizer, pool=pool, **options)
    if vision is None:
        raise UserError(f"data.sources.{name} has images, and the model no vision: set model.vision.layers")
    from k2jax.data.images.corpus import prepare_visual  # needs the extra ``vision``, as text does not

    return prepare_visual(name, config, tokenizer, vision, **options)


def rows_of_split(config: DataConfig, name: str, source: Shards | VisualCorpus, split: str) -> SplitRows:
    """Rows of a split, by the kind of its source; held-out images are never augmented."""
    kind = config.sources[name].kind
    if kind in IMAGE_SOURCES:
        from k2jax.data.images.image_rows import VisualRows

        images, length = config.images, config.sequence_length
        augment = images.augment if split == TRAIN else 0.0
        return VisualRows(source.split(split), length, patches=images.patches, each=images.each, augment=augment)
    stream = source.train if split == TRAIN else source.held_out
    return (ConversationRows if kind in CONVERSATIONS else RowSource)(stream, config.sequence_length)


def image_batches(images: ImageShape | None) -> ImageBatches | None:
    """How the images of a batch are laid out; None of a model of text."""
    if images is None:
        return None
    from k2jax.data.images.batches import ImageBatches

    return ImageBatches(images.rows, images.vision, images.local_rows)


def fingerprint_of(tokenizer: Tokenizer, shards: dict[str, Shards | VisualCorpus], order: list[str]) -> str:
    """Hash of contents, not of paths or dates: a corpus may move to another machine before a run is resumed."""
    contents = {name: source.contents for name, source in shards.items()}
    parts = [tokenizer.fingerprint, tokenizer.bos, tokenizer.eos, contents, *order]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
