"""The JSON values of a checkpoint, sealed: what was saved together is told apart from what was put together later.

``save`` is a random name of the save, which orbax's description of every item repeats, and ``sha256`` a digest of all
other values. Format 2 had neither, nor checksums on the data.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
import secrets
from typing import Any

from k2jax.checkpoint.storage import description

FORMAT = 3
"""Number of the on-disk format; a checkpoint with another one than ``READABLE`` is refused by name."""
READABLE = (2, FORMAT)


class WrongFormatError(ValueError):
    """A checkpoint of a format that this version does not read, whole as it may be."""


def sealed(values: dict[str, Any], step: int, extra: Any = None) -> dict[str, Any]:
    """The meta item of a new save.

    Args:
        values: JSON values that belong to the state.
        step: optimizer steps done.
        extra: the encoded extra item, whose digest is added; None for none.
    """
    meta = {**values, "format": FORMAT, "step": step, "save": secrets.token_hex(8)}
    if extra is not None:
        meta["extra"] = digest(extra)
    return {**meta, "sha256": digest(meta)}


def check(meta: Any, step_folder: Path) -> dict[str, Any]:
    """The meta item of a step folder, checked.

    Raises:
        WrongFormatError: it has another format.
        ValueError: it is not what was saved, or belongs to another step.
        OSError: an item's description cannot be read.
    """
    if not isinstance(meta, dict):
        raise ValueError("meta is not a JSON object")
    if type(meta.get("format")) is not int:
        raise ValueError("meta is not what was saved: it has no format")
    if meta["format"] not in READABLE:
        raise WrongFormatError(
            f"it has checkpoint format {meta['format']}, this version reads {FORMAT}; use the version of k2jax "
            "that wrote it"
        )
    if has_checksums(meta) and meta.get("sha256") != digest({k: v for k, v in meta.items() if k != "sha256"}):
        raise ValueError("meta is not what was saved: its sha256 differs")
    if str(meta.get("step")) != step_folder.name:
        raise ValueError(f"it holds step {meta.get('step')}: give the folder that number")
    if has_checksums(meta):
        for item in ("params", "optimizer"):
            if (step_folder / item).exists() or item == "params":
                found = description(step_folder / item).get("custom_metadata") or {}
                if found.get("save") != meta["save"]:
                    raise ValueError(f"{item} belongs to another checkpoint")
    return meta


def has_checksums(meta: dict[str, Any]) -> bool:
    """Whether the checkpoint is of a format that carries checksums."""
    return meta["format"] > 2


def digest(values: Any) -> str:
    """The sha256 of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
