"""The tokenised sources in the cache: which there are, what they hold, and whether they are as they were written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from k2jax.data.blocks import READ_AT_ONCE
from k2jax.data.cache import cache_root, damaged
from k2jax.data.images.corpus_files import GRIDS, SIZES, checksum
from k2jax.data.manifest import ASSISTANT, HELD_OUT, NAME, TRAIN, read_manifest
from k2jax.data.shards import open_shards
from k2jax.errors import UserError, nearest
from k2jax.files.objects.cached_reads import forget_kept
from k2jax.files.objects.object_path import ObjectPath, parse_place
from k2jax.files.objects.store_client import store_client
from k2jax.text.tokenizer import Tokenizer

SHOWN = 400
"""Characters of a document that are shown."""


class KeptCorpus(NamedTuple):
    """A source in the cache.

    Attributes:
        folder: where it lies.
        manifest: see ``data.manifest``.
    """

    folder: Path | ObjectPath
    manifest: dict[str, Any]

    @property
    def is_visual(self) -> bool:
        """Whether it is of conversations with images, whose tokens are made when they are read."""
        return "patches" in self.manifest["splits"][TRAIN]

    @property
    def bytes(self) -> int:
        """What its files take [bytes]."""
        if isinstance(self.folder, Path):
            return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return sum(entry["bytes"] for entry in self.manifest["files"].values())

    @property
    def made(self) -> str:
        """When it was finished, in UTC; empty in a store, which knows only when it was copied there."""
        if not isinstance(self.folder, Path):
            return ""
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
        if isinstance(self.folder, ObjectPath):
            self._verify_stored(self.folder)
            return
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

    def _verify_stored(self, folder: ObjectPath) -> None:
        """Compares what the store itself gives, by no cache, with the manifest."""
        client = store_client(folder.scheme)
        for name, entry in sorted(self.manifest["files"].items()):
            path, digest = folder / name, hashlib.sha256()
            try:
                for start in range(0, entry["bytes"], READ_AT_ONCE):
                    stop = min(start + READ_AT_ONCE, entry["bytes"])
                    digest.update(client.read(path.place, start, stop))
                size = client.info(path.place).size
            except FileNotFoundError:
                raise damaged(path, "missing", folder) from None
            if size != entry["bytes"]:
                raise damaged(path, f"{size} bytes long instead of {entry['bytes']}", folder)
            if not self.is_visual and digest.hexdigest() != entry["sha256"]:
                raise damaged(path, "altered (its sha256 is not the manifest's)", folder)

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
        source = self.manifest.get("source", {})
        yield from ((key, source[key]) for key in ("licence", "version") if source.get(key))
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

    Raises:
        UserError: the cache is in a store, which failed for too long.
    """
    return corpora_in(cache_root(cache_dir))


def corpora_in(root: Path | ObjectPath) -> tuple[list[KeptCorpus], list[str]]:
    """As ``kept_corpora``, of a folder or a place in a store."""
    found, problems = [], []
    for folder in _folders(root / "shards"):
        try:
            found.append(_read(folder))
        except UserError as error:
            problems.append(str(error))
    return found, problems


def kept_corpus(name: str, cache_dir: str) -> KeptCorpus:
    """The corpus of a name that ``kept_corpora`` gives, or its folder or URL.

    Raises:
        UserError: there is none, or its manifest is damaged.
    """
    root = cache_root(cache_dir) / "shards"
    folder = root / name if "/" not in name else parse_place(name)
    if isinstance(folder, ObjectPath) or folder.is_dir():
        return _read(folder)
    names = sorted(each.name for each in _folders(root))
    raise UserError(f"{root} has no {name!r}{nearest(name, names)}; python -m k2jax.data list shows what there is")


def _read(folder: Path | ObjectPath) -> KeptCorpus:
    """A corpus as it is now: what this machine kept of its manifest is not believed."""
    if isinstance(folder, ObjectPath):
        forget_kept(folder / NAME)
    return KeptCorpus(folder, read_manifest(folder))


def _folders(shards: Path | ObjectPath) -> list[Path] | list[ObjectPath]:
    if isinstance(shards, Path):
        return sorted(shards.glob("[!.]*"))
    return [path.parent for path in shards.below() if path.name == NAME and path.parent.parent == shards]
