"""Corpora that were retired: a record beside the cache says when and why, and that they are not built again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.files.atomic import write_atomic
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.objects.store_client import store_client

FOLDER = "retired"


class RetiredCorpus(NamedTuple):
    """A record of a corpus that was retired.

    Attributes:
        name: of its folder.
        date: in UTC.
        reason: in the user's words.
        source: what it was read from.
        documents: that it had for training.
        tokens: that it had for training.
    """

    name: str
    date: str
    reason: str
    source: str
    documents: int
    tokens: int


def record_place(folder: Path | ObjectPath) -> Path | ObjectPath:
    """Where the record of a corpus lies: beside ``shards`` of its cache."""
    return folder.parent.parent / FOLDER / f"{folder.name}.json"


def write_retired(folder: Path | ObjectPath, retired: RetiredCorpus) -> None:
    """Writes the record of a corpus, which may still be there."""
    place, content = record_place(folder), json.dumps(retired._asdict(), indent=1).encode()
    if isinstance(place, Path):
        write_atomic(place, content)
    else:
        store_client(place.scheme).write_bytes(place.place, content)


def retired_corpora(root: Path | ObjectPath) -> list[RetiredCorpus]:
    """The records beside a cache, by name.

    Raises:
        UserError: one is damaged, or the store failed for too long.
    """
    folder = root / FOLDER
    paths = sorted(folder.glob("*.json")) if isinstance(folder, Path) else list(folder.below())
    return [_read(path) for path in paths]


def refuse_retired(folder: Path | ObjectPath) -> None:
    """Raises UserError where a corpus that is to be built was retired."""
    if folder.parent.name != "shards":
        return
    place = record_place(folder)
    if place.exists():
        retired = _read(place)
        raise UserError(
            f"{folder.name} was retired on {retired.date}: {retired.reason}; leave out its source, or delete "
            f"{place} to have it built again"
        )


def _read(path: Path | ObjectPath) -> RetiredCorpus:
    try:
        found = RetiredCorpus(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        raise UserError(f"{path} is no record of a retired corpus: delete it or write it again") from None
    return found._replace(**{key: abbreviate(value, 300).strip("'") for key, value in found._asdict().items()
                             if isinstance(value, str)})  # fmt: skip
