"""Records of JSONL files."""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path
from typing import Any

from k2jax.errors import UserError


def read_records(dataset: str, path: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one on every line that is not empty.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object; ``dataset`` begins the message.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"{dataset}: cannot read {path}: {reason}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise UserError(f"{dataset}: line {number} of {path} is no JSON object")
            yield record
