"""Figures of a corpus for its page: what was read and kept, how long documents are, and the beginnings of some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.data.kept_corpora import KeptCorpus
from k2jax.data.manifest import HELD_OUT, TRAIN
from k2jax.data.shards import open_shards
from k2jax.data.stored_folder import local_folder
from k2jax.errors import UserError
from k2jax.files.objects.object_path import ObjectPath
from k2jax.text.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer

AT_ONCE = 2**20
"""Offsets that are read at a time."""


class LengthBin(NamedTuple):
    """Documents of ``low`` to ``high - 1`` tokens."""

    low: int
    high: int
    documents: int


class CorpusFigures(NamedTuple):
    """What a page shows of a corpus beside its manifest.

    Attributes:
        funnel: stages in words, with the number of records that are left.
        lengths: documents for training by their number of tokens; none of a corpus with images.
        median: tokens of the document in the middle, to the width of its bin; 0 where there are no lengths.
        samples: beginnings of documents.
        note: why there are no samples; else empty.
    """

    funnel: Sequence[tuple[str, int]]
    lengths: Sequence[LengthBin]
    median: int
    samples: Sequence[str]
    note: str


def figures_of(corpus: KeptCorpus, tokenizers: Sequence[Tokenizer], count: int) -> CorpusFigures:
    """The figures of a corpus.

    Args:
        corpus: in a cache.
        tokenizers: those that are known; the one that made the corpus gives its samples.
        count: of samples.

    Raises:
        UserError: a file is damaged.
    """
    manifest = corpus.manifest
    train, held_out = (manifest["splits"][split]["documents"] for split in (TRAIN, HELD_OUT))
    funnel = [*_steps(corpus), ("usable", train + held_out), ("for training", train)]
    if corpus.is_visual:
        return CorpusFigures(funnel, [], 0, [], "tokens of images are made when they are read")
    lengths = _lengths(open_shards(corpus.folder).train.offsets)
    wanted = manifest["tokenizer"]["fingerprint"]
    tokenizer = next((each for each in tokenizers if each.fingerprint == wanted), None)
    samples = [] if tokenizer is None else list(corpus.documents(tokenizer, count))
    note = "" if samples else "its tokenizer is not in this cache: give --tokenizer=PATH"
    return CorpusFigures(funnel, lengths, _median(lengths), samples, note)


def _steps(corpus: KeptCorpus) -> list[tuple[str, int]]:
    """What was read, and what each step left of it."""
    manifest, steps = corpus.manifest, corpus.manifest.get("steps")
    if not steps:
        usable = sum(split["documents"] for split in manifest["splits"].values())
        return [("records read", usable + manifest["skipped"]["count"])]
    found, left = [("documents read", steps["read"])], steps["read"]
    for reason, count in steps["dropped"].items():
        left -= count
        found.append((f"without: {reason}", left))
    return found


def tokenizers_of(cache: Path | ObjectPath, made) -> list[Tokenizer]:
    """The tokenizers of a cache, and that of bytes; damaged ones are left out.

    Args:
        cache: its folder or place in a store.
        made: ``cache.get_or_build``.
    """
    folder = cache / "tokenizers"
    if isinstance(folder, Path):
        folders = sorted(folder.glob("[!.]*"))
    else:
        folders = sorted({path.parent for path in folder.below()}, key=str)
    found = [byte_tokenizer()]
    for each in folders:
        try:
            found.append(load_tokenizer(local_folder(each, made)))
        except UserError:
            continue
    return found


def _lengths(offsets) -> list[LengthBin]:
    """Documents by powers of two of their tokens, those bins that are not empty and all between them."""
    counts = np.zeros(64, np.int64)
    for start in range(0, len(offsets) - 1, AT_ONCE):
        sizes = np.diff(np.asarray(offsets[start : start + AT_ONCE + 1]))
        counts += np.bincount(np.log2(sizes).astype(int), minlength=64)
    used = np.flatnonzero(counts)
    return [LengthBin(2**power, 2 ** (power + 1), int(counts[power])) for power in range(used[0], used[-1] + 1)]


def _median(lengths: Sequence[LengthBin]) -> int:
    half, seen = sum(each.documents for each in lengths) / 2, 0
    for each in lengths:
        seen += each.documents
        if seen >= half:
            return each.low
    return 0
