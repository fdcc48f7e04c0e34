"""The sources of a run with phases: text is tokenised once, images are measured in the sizes of every phase.

How long a row is, and how many patches its images may have, decides what an image is reduced to and which conversations
fit a row at all: a long clip has its place in the phase of long rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

from k2jax.config.schema import IMAGE_SOURCES, DataConfig, StepsConfig
from k2jax.data.preparation.choosing import check_steps
from k2jax.data.training_data import build_sources
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from k2jax.data.images.corpus import VisualCorpus
    from k2jax.data.shards import Shards

    Sources = dict[str, Shards | VisualCorpus]


def phase_sources(
    config: DataConfig, phases: Sequence[DataConfig], *, tokenizer: Tokenizer | None = None, **options: Any
) -> tuple[Tokenizer, list[Sources]]:
    """The tokenizer and, for every phase, its sources, from the cache or built now.

    Args:
        config: the ``data`` group of the run, with all its sources.
        phases: those of its phases, each with the sources that it reads.
        tokenizer: takes the place of the configured one.
        **options: further ones of ``build_sources``.

    Returns:
        Of every phase all texts of the run, and the sources with images that a phase of the same sizes reads.

    Raises:
        UserError: as of ``build_sources``.
    """
    check_steps(config)
    own = {name: options[name] for name in ("builder", "wait_seconds", "log") if name in options}
    tokenizer = tokenizer or prepare_tokenizer(config, **own)
    names = {name for name, source in config.sources.items() if source.kind in IMAGE_SOURCES}
    texts = {name: source for name, source in config.sources.items() if name not in names}
    built: Sources = {}
    if texts or not names:
        _, built = build_sources(dataclasses.replace(config, sources=texts), tokenizer=tokenizer, **options)
    measured: dict[tuple[int, ...], Sources] = {}
    for phase in phases:
        corpora = measured.setdefault(_sizes(phase), {})
        missing = {name: phase.sources[name] for name in names & phase.sources.keys() - corpora.keys()}
        if missing:
            seen = dataclasses.replace(phase, sources=missing, steps=StepsConfig())  # steps are of texts
            corpora |= build_sources(seen, tokenizer=tokenizer, **options)[1]
    return tokenizer, [built | measured[_sizes(phase)] for phase in phases]


def _sizes(phase: DataConfig) -> tuple[int, ...]:
    """What decides how a source with images is measured and may differ between phases."""
    return phase.sequence_length, phase.images.patches, phase.images.each, phase.images.image_patches
