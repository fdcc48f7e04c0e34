"""Rows of tables in files: CSV and Parquet, beside the JSON lines of ``record_fields``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import csv
import io
from pathlib import Path
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.content import text_of_file
from k2jax.files.readers import ROWS_PER_READ, first_line, parquet_rows

TABLES = (".csv", ".parquet")
"""Ends of the names of tables."""


def csv_records(dataset: str, path: Path, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a CSV file in UTF-8, by the names in its first row or, where it has none, by ``columns``.

    Raises:
        UserError: it cannot be read, or a row has another number of cells; ``dataset`` begins the message.
    """
    rows = csv_rows(dataset, path)
    names = list(columns) or next(rows, [])
    for number, row in enumerate(rows, 1 if columns else 2):
        if row and len(row) != len(names):
            raise UserError(f"{dataset}: row {number} of {path} has {len(row)} cells, and not {len(names)}")
        if row:
            yield dict(zip(names, row, strict=True))


def csv_rows(dataset: str, path: Path) -> Iterator[list[str]]:
    """The cells of every row of a CSV file in UTF-8, its first one too.

    Raises:
        UserError: it cannot be read; ``dataset`` begins the message.
    """
    try:
        yield from csv.reader(io.StringIO(text_of_file(path).decode(), newline=""), strict=True)
    except OSError as error:
        raise UserError(f"{dataset}: cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{dataset}: {path} is no CSV in UTF-8: {abbreviate(str(error))}") from None


def parquet_records(dataset: str, path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as Python's values.

    Raises:
        UserError: it cannot be read, or pyarrow is not installed; ``dataset`` begins the message.
    """

    def refuse(where: str, why: str) -> None:
        raise UserError(f"{dataset}: {where}: {why}")

    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema
    except ModuleNotFoundError:
        raise UserError(f"{dataset}: {path} needs pyarrow; pip install 'k2jax[data]'") from None
    try:
        names = read_schema(path).names
    except (ArrowException, OSError) as error:
        refuse(str(path), f"not readable as parquet: {first_line(error)}")
    for _, row in parquet_rows(path, names, refuse, ROWS_PER_READ):
        yield {name: value.as_py() for name, value in row.items()}
