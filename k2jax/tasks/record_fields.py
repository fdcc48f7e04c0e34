"""Records of files: JSON lines, CSV with names in the first row, or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k2jax.agents.split import FileSplit, split_of
from k2jax.errors import UserError
from k2jax.files.readers import lines_of_json
from k2jax.tasks.table_files import TABLES, csv_records, parquet_records


def read_records(dataset: str, path: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, which may be compressed, one on every line that is not empty, or the rows of a table.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object; ``dataset`` begins the message.
    """
    file = Path(path).expanduser()
    if file.suffix in TABLES:
        yield from csv_records(dataset, file) if file.suffix == ".csv" else parquet_records(dataset, file)
        return
    for line in lines_of_json(file):
        if line.why.startswith("cannot be read"):
            raise UserError(f"{dataset}: cannot read {path}: {line.why.removeprefix('cannot be read: ')}")
        if not isinstance(line.value, dict):
            number = line.name.rpartition(":")[2]
            raise UserError(
                f"{dataset}: line {number} of {path} is no JSON object{f': {line.why}' if line.why else ''}"
            )
        yield line.value


def in_split(prompt: str, split: FileSplit) -> bool:
    """Whether a prompt of a file belongs to a split."""
    return split in ("all", split_of(prompt))
