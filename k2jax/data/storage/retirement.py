"""Removes a corpus for good: a record of when and why stays, and it is not built again."""

from __future__ import annotations

from datetime import UTC, datetime
import os
from pathlib import Path
import secrets
import shutil

from k2jax.data.in_use import is_in_use
from k2jax.data.kept_corpora import KeptCorpus
from k2jax.data.manifest import NAME, TRAIN
from k2jax.data.retired import RetiredCorpus, record_place, write_retired
from k2jax.data.stored_folder import forget
from k2jax.errors import UserError
from k2jax.files.objects.store_client import store_client


def retire(corpus: KeptCorpus, reason: str, sure: bool) -> str:
    """Retires a corpus: writes its record first, then removes it, so that a kill is continued by the same command.

    Args:
        corpus: in a cache, ``CACHE/shards/NAME``.
        reason: in the user's words.
        sure: whether the user has said that nobody reads it.

    Returns:
        Where the record lies.

    Raises:
        UserError: a process of this machine reads it, or it is in a store, where that cannot be seen.
        OSError: it cannot be removed.
    """
    folder, counts = corpus.folder, corpus.manifest["splits"][TRAIN]
    if folder.parent.name != "shards":
        raise UserError(f"{folder} lies in no folder shards of a cache; remove it yourself")
    if isinstance(folder, Path) and is_in_use(folder):
        raise UserError(f"{folder} is read by a process of this machine; wait for it, or stop it")
    if not isinstance(folder, Path) and not sure:
        raise UserError(f"{folder} may be in use by runs that cannot be seen from here; stop them and give --yes")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    retired = RetiredCorpus(folder.name, today, reason, corpus.path, counts["documents"], counts["tokens"])
    write_retired(folder, retired)
    if isinstance(folder, Path):
        os.rename(folder, folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.retired"))
        for aside in folder.parent.glob(".*.retired"):  # of one that was killed here too
            shutil.rmtree(aside)
    else:
        client = store_client(folder.scheme)
        last = (folder / NAME).place  # without it the command would not find the rest again
        for place in [*(path.place for path in folder.below() if path.place != last), last]:
            client.remove(place)
        forget(folder)
    return str(record_place(folder))
