"""Copies of corpora from a cache to another, between folders and stores: only what is missing, verified by hash.

The manifest is written last, so that a copy that is broken off is no corpus, and the next one continues it.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import hashlib
from pathlib import Path

from k2jax.data.kept_corpora import KeptCorpus, corpora_in
from k2jax.data.manifest import NAME, read_manifest
from k2jax.data.retired import retired_corpora
from k2jax.data.storage.corpus_files import Place, copy_file, pieces_of, sha256_of, size_of
from k2jax.data.stored_folder import forget
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.files.objects.object_path import ObjectPath, parse_place
from k2jax.files.objects.store_client import store_client

_TOKENIZER, _SUM = "tokenizer.json", "tokenizer.json.sha256"


@dataclasses.dataclass
class SyncCounts:
    """What was done.

    Attributes:
        corpora: that are at the destination now.
        files: that were copied.
        bytes: that were copied.
        present: files that were there.
    """

    corpora: int = 0
    files: int = 0
    bytes: int = 0
    present: int = 0


def sync_corpora(source: str, destination: str, log: Callable[[str], None]) -> SyncCounts:
    """Copies the corpora of a cache, or one of them, with their tokenizers.

    Args:
        source: a cache, or the folder of one corpus in it; a path or a URL.
        destination: another cache.
        log: receives a line for each corpus.

    Raises:
        UserError: there is nothing to copy, a file is damaged, a store failed for too long.
        OSError: the disk cannot be written.
    """
    place, root, counts = parse_place(source), parse_place(destination), SyncCounts()
    if size_of(place / NAME) is not None:
        corpora, cache = [KeptCorpus(place, read_manifest(place))], place.parent.parent
    else:
        (corpora, problems), cache = corpora_in(place), place
        if problems:
            raise UserError(problems[0])
    if not corpora:
        raise UserError(f"{source} has no tokenised sources in {place / 'shards'}, and is none itself")
    retired = {each.name for each in retired_corpora(root)}
    for corpus in corpora:
        name = corpus.folder.name
        if name in retired:
            log(f"{name}: retired in {root}, not copied")
            continue
        before = dataclasses.replace(counts)
        _copy_corpus(corpus, root / "shards" / name, counts)
        counts.corpora += 1
        done = f"{counts.files - before.files:,} files copied ({counts.bytes - before.bytes:,} bytes)"
        log(f"{name}: {done}, {counts.present - before.present:,} were there")
    for folder in _tokenizers(cache):
        _copy_tokenizer(folder, root / "tokenizers" / folder.name, counts)
    return counts


def _copy_corpus(corpus: KeptCorpus, to: Place, counts: SyncCounts) -> None:
    content = b"".join(pieces_of(corpus.folder / NAME, size_of(corpus.folder / NAME) or 0))
    if _content(to / NAME) == content and all(
        size_of(to / name) == entry["bytes"] for name, entry in corpus.manifest["files"].items()
    ):
        counts.present += 1 + len(corpus.manifest["files"])
        return
    if corpus.is_visual:
        corpus.verify()  # its manifest has checksums of what the files say, not of the files
    for name, entry in sorted(corpus.manifest["files"].items()):
        size = entry["bytes"]
        sha256 = sha256_of(corpus.folder / name, size) if corpus.is_visual else entry["sha256"]
        _copy(corpus.folder / name, to / name, size, sha256, counts)
    _write(to / NAME, content)
    if isinstance(to, ObjectPath):
        forget(to)
    counts.files += 1


def _copy(source: Place, to: Place, size: int, sha256: str, counts: SyncCounts) -> None:
    if size_of(to) == size and sha256_of(to, size) == sha256:
        counts.present += 1
        return
    copy_file(source, to, size, sha256)
    counts.files, counts.bytes = counts.files + 1, counts.bytes + size


def _copy_tokenizer(folder: Place, to: Place, counts: SyncCounts) -> None:
    content, line = _content(folder / _TOKENIZER), _content(folder / _SUM)
    if content is None or line is None:
        raise UserError(f"{folder} is no finished tokenizer: delete it")
    if hashlib.sha256(content).hexdigest() not in line.decode(errors="replace"):
        raise UserError(f"{folder / _TOKENIZER} is damaged: delete the folder {folder}")
    _copy(folder / _TOKENIZER, to / _TOKENIZER, len(content), hashlib.sha256(content).hexdigest(), counts)
    _copy(folder / _SUM, to / _SUM, len(line), hashlib.sha256(line).hexdigest(), counts)
    if isinstance(to, ObjectPath):
        forget(to)


def _tokenizers(cache: Place) -> list[Place]:
    folder = cache / "tokenizers"
    if isinstance(folder, Path):
        return [each for each in sorted(folder.glob("[!.]*")) if (each / _SUM).exists()]
    return [path.parent for path in folder.below() if path.name == _SUM]


def _content(path: Place) -> bytes | None:
    size = size_of(path)
    return None if size is None else b"".join(pieces_of(path, size))


def _write(path: Place, content: bytes) -> None:
    if isinstance(path, Path):
        write_atomic(path, content)
    else:
        store_client(path.scheme).write_bytes(path.place, content)
