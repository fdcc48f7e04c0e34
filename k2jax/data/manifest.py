"""The manifest of a folder of shards: what is in the folder, with a checksum of the manifest itself."""

from __future__ import annotations

from collections.abc import Callable
import functools
import hashlib
import json
from pathlib import Path

from k2jax.data.cache import damaged, unreadable
from k2jax.data.split_writer import flush_to_disk
from k2jax.errors import UserError
from k2jax.files.objects.cached_reads import forget_kept, read_kept
from k2jax.files.objects.object_path import ObjectPath

FORMAT = 2
NAME = "manifest.json"
TRAIN, HELD_OUT = "train", "held_out"
ASSISTANT = "assistant_tokens"
"""Key of a split of conversations: tokens that the assistant wrote, which are the targets."""
COUNTS = ("documents", "tokens", "bytes")


def write_manifest(folder: Path, contents: dict) -> None:
    """Writes ``manifest.json``: JSON-serialisable contents, and under ``sha256`` their checksum."""
    with (folder / NAME).open("w", encoding="utf-8") as file:
        json.dump(contents | {"sha256": _checksum(contents)}, file, indent=1)
        flush_to_disk(file)


def read_manifest(folder: Path | ObjectPath) -> dict:
    """Reads ``manifest.json`` without its checksum.

    That of a folder in a store is read once on a machine: what a folder holds never changes.

    Raises:
        UserError: if it is missing, altered or of another format; the message names the folder to delete.
    """
    path = folder / NAME
    if isinstance(path, Path):
        return _parsed(path, folder, path.read_bytes)
    try:
        return _parsed(path, folder, functools.partial(read_kept, path))
    except UserError:
        forget_kept(path)
        raise


def _parsed(path: Path | ObjectPath, folder: Path | ObjectPath, read: Callable[[], bytes]) -> dict:
    try:
        manifest = json.loads(read())
    except OSError as error:
        raise unreadable(path, error, folder) from None
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or absurd JSON
        raise damaged(path, "not readable as JSON", folder) from None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise damaged(path, "not a manifest", folder)
    if manifest["format"] != FORMAT:
        raise damaged(path, f"of format {str(manifest['format'])[:20]!r}, not {FORMAT}", folder)
    checksum = manifest.pop("sha256", None)
    if checksum != _checksum(manifest):
        raise damaged(path, "altered (its contents do not have its checksum)", folder)
    if not _is_complete(manifest):
        raise damaged(path, "not a complete manifest", folder)
    return manifest


def shard_dtype(vocab_size: int, marked: bool = False) -> str:
    """The narrowest type that the tokens of a vocabulary fit into, with a bit more where they are marked."""
    return "uint16" if vocab_size << marked <= 2**16 else "uint32"


def _checksum(contents: dict) -> str:
    """Sha256 of the canonical JSON of some contents."""
    return hashlib.sha256(json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _is_complete(manifest: dict) -> bool:
    """Whether all that opening a folder reads is there, and possible by itself."""
    try:
        numbers = [manifest["splits"][split][key] for split in (TRAIN, HELD_OUT) for key in COUNTS]
        numbers += [entry["bytes"] for entry in manifest["files"].values()]
        digests = [entry["sha256"] for entry in manifest["files"].values()]
        vocab_size, marked = manifest["tokenizer"]["vocab_size"], manifest.get("marked", False)
    except (AttributeError, KeyError, TypeError):
        return False
    return (
        all(type(number) is int and number > 0 for number in [*numbers, vocab_size])
        and all(isinstance(digest, str) for digest in digests)
        and isinstance(marked, bool)
        and manifest.get("dtype") == shard_dtype(vocab_size, marked)
    )
