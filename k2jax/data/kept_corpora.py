"""The tokenised sources in the cache: which there are, what they hold, and whether they are as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from k2jax.data.cache import cache_root, damaged
from k2jax.data.images.corpus_files import GRIDS, SIZES, checksum
from k2jax.data.manifest import ASSISTANT, HELD_OUT, TRAIN, read_manifest
from k2jax.data.shards import open_shards
from k2jax.errors import UserError, nearest
from k2jax.text.tokenizer import Tokenizer

SHOWN = 400
"""Characters of a document that are shown."""


class KeptCorpus(NamedTuple):
    """A source in the cache.

    Attributes:
        folder: where it lies.
        manifest: see ``data.manifest``.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def is_visual(self) -> bool:
        """Whether it is of conversations with images, whose tokens are made when they are read."""
        return "patches" in self.manifest["splits"][TRAIN]

    @property
    def bytes(self) -> int:
        """What its files take [bytes]."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def made(self) -> str:
        """When it was finished, in UTC."""
        return f"{datetime.fromtimestamp(self.folder.stat().st_mtime, UTC):%Y-%m-%d %H:%M}"

    @property
    def path(self) -> str:
        """What it was read from, as its configuration named it."""
        source = self.manifest.get("source", {})
        return source.get("path") or source.get("kind") or self.folder.name.rpartition("-")[0]

    def verify(self) -> None:
        """Reads all of it.

        Raises:
            UserError: something is not as it was written; the message names the file and the folder to delete.
        """
        if not self.is_visual:
            shards = open_shards(self.folder)
            shards.train.check()
            shards.held_out.check()
            return
        for name in (SIZES, GRIDS):
            try:
                array = np.load(self.folder / name)
            except (OSError, ValueError, EOFError):
                raise damaged(self.folder / name, "missing or not readable", self.folder) from None
            if checksum(array.tobytes()) != self.manifest["files"][name]["sha256"]:
                raise damaged(self.folder / name, "not as it was written", self.folder)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What its manifest says, by name."""
        yield from {"folder": self.folder, "source": self.path, "made (UTC)": self.made, "bytes": self.bytes}.items()
        words = {
            "documents": "documents",
            "tokens": "tokens",
            "bytes": "bytes of text",
            ASSISTANT: "assistant's tokens",
        }
        for split in (TRAIN, HELD_OUT):
            counts = self.manifest["splits"][split]
            for key, word in words.items():
                if key in counts:
                    yield f"{split}: {word}", counts[key]
        yield "tokenizer", self.manifest["tokenizer"]["fingerprint"]
        yield "skipped records", self.manifest["skipped"]["count"]
        for number, line in enumerate(self.manifest["skipped"]["first"][:5]):
            yield f"skipped, {number + 1}", line
        if steps := self.manifest.get("steps"):
            yield from {"documents read": steps["read"], "documents kept by steps": steps["kept"]}.items()
            for reason, count in steps["dropped"].items():
                yield f"dropped: {reason}", f"{count} ({count / steps['read']:.1%})"
            for reason, found in steps["examples"].items():
                for number, (where, text) in enumerate(found):
                    yield f"dropped: {reason}, {number + 1}", f"{where}: {text!r}"
        for name, count in {**self.manifest.get("unread_fields", {}), **self.manifest.get("left_out", {})}.items():
            yield f"not read: {name}", count

    def documents(self, tokenizer: Tokenizer, count: int) -> Iterator[str]:
        """The beginnings of documents, evenly spaced over those for training.

        Raises:
            UserError: it has no tokens, or those of another tokenizer.
        """
        if self.is_visual:
            raise UserError(f"{self.folder.name} has images, whose tokens are made when they are read")
        if tokenizer.fingerprint != self.manifest["tokenizer"]["fingerprint"]:
            raise UserError(f"{self.folder.name} was written with another tokenizer; give --tokenizer=PATH")
        stream, marked = open_shards(self.folder).train, self.manifest.get("marked", False)
        for number in range(min(count, stream.documents)):
            place = number * stream.documents // count
            begin, end = (int(each) for each in stream.offsets[place : place + 2])
            ids = stream.read(begin, min(end, begin + SHOWN)) >> marked
            yield tokenizer.decode(ids.tolist())[:SHOWN]


def kept_corpora(cache_dir: str) -> tuple[list[KeptCorpus], list[str]]:
    """What is in the cache, and a line about each folder whose manifest is damaged.

    Args:
        cache_dir: see ``cache_root``.
    """
    found, problems = [], []
    for folder in sorted((cache_root(cache_dir) / "shards").glob("[!.]*")):
        try:
            found.append(KeptCorpus(folder, read_manifest(folder)))
        except UserError as error:
            problems.append(str(error))
    return found, problems


def kept_corpus(name: str, cache_dir: str) -> KeptCorpus:
    """The corpus of a name that ``kept_corpora`` gives, or its folder.

    Raises:
        UserError: there is none, or its manifest is damaged.
    """
    root = cache_root(cache_dir) / "shards"
    folder = root / name if "/" not in name else Path(name)
    if not folder.is_dir():
        names = sorted(each.name for each in root.glob("[!.]*"))
        raise UserError(f"{root} has no {name!r}{nearest(name, names)}; python -m k2jax.data list shows what there is")
    return KeptCorpus(folder, read_manifest(folder))
