"""Readers of files and of Hugging Face data sets: each yields ``(name, text)`` and reports unusable records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import importlib
import json
from pathlib import Path
import re
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from k2jax.errors import UserError
from k2jax.files.bounded_json import count_values
from k2jax.files.content import lines_of_file, text_of_file
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.parquet_pages import page_sizes

Report = Callable[[str, str], None]
"""Receives the location of an unusable record and the reason."""
Documents = Iterator[tuple[str, str]]
ROWS_PER_READ = 256
IN_ONE_PIECE = "one JSON value over many lines, not one object a line: convert it with jq -c '.[]' FILE > FILE.jsonl"
LARGEST_RECORD = 64 << 20
"""Bytes of a line of JSON, and of a cell of a Parquet file. A larger one is a corrupt record."""
MOST_VALUES = 1_000_000
"""JSON values of a line, each of which may become 120 bytes of Python's. A line with more is a corrupt record."""
LARGEST_WIDE = 24 << 20
"""Bytes of a line with characters beyond U+FFFF, of which one makes all others four times as long in memory."""
_WIDE = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
_RELATIVE = re.compile("\0([0-9]+)\0")
_MOST_COMPRESSED = 100
"""How much larger than in the file a page of Parquet may be beyond ``LARGEST_RECORD``: writers put a thousand cells
into one, images as well, and those are no smaller in the file. A few kilobytes could become a page of gigabytes."""


def whole_file(path: Path, field: str, report: Report) -> Documents:
    """Reads a text file as one document; ``field`` is not used."""
    try:
        content = text_of_file(path)
        yield str(path), content.decode()
    except OSError as error:
        report(str(path), f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        report(f"{path}, line {line}, byte {error.start}", "not UTF-8")


def jsonl(path: Path, field: str, report: Report, begin: int = 0, end: int | None = None) -> Documents:
    """Reads one document per line: the string at ``field`` of a JSON object. Blank lines are ignored.

    ``begin`` and ``end`` choose lines as ``lines_of_file`` does.
    """
    for name, where, record, _ in json_lines(path, report, begin, end):
        if (text := checked_text(record, field, where, report)) is not None:
            yield name, text


def json_lines(
    path: Path, report: Report, begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, str, Any, int]]:
    """Reads one JSON value per line, as ``lines_of_json``: name, place in words, value and length [bytes]."""
    for line in lines_of_json(path, begin, end):
        if line.why:
            report(line.where, line.why)
        else:
            yield line.name, line.where, line.value, line.length


class JsonLine(NamedTuple):
    """A line that is not blank: its name, its place in words, the value, its length [bytes], and why it has none."""

    name: str
    where: str
    value: Any
    length: int
    why: str = ""


def lines_of_json(path: Path, begin: int = 0, end: int | None = None) -> Iterator[JsonLine]:
    """Reads lines, those included that are no JSON; a file may be compressed, and bytes count what it grows to.

    A file that is one JSON value over many lines is reported once, instead of each of its lines. ``begin``
    and ``end`` choose lines as ``lines_of_file`` does. Numbers of lines then count from ``begin``: who joins the parts
    of a file gives names and places to ``with_lines_before``.
    """
    try:
        for number, (line, offset, length) in enumerate(lines_of_file(path, LARGEST_RECORD, begin, end), start=1):
            numbered = f"\0{number}\0" if begin else str(number)
            name, where = f"{path}:{numbered}", f"{path}, line {numbered}, byte {offset}"
            if offset == 0 and line.strip() in (b"[", b"{"):
                yield JsonLine(name, where, None, length, IN_ONE_PIECE)
                return
            if length > LARGEST_RECORD:
                yield JsonLine(name, where, None, length, f"longer than {LARGEST_RECORD:,} bytes")
            elif line.strip():
                value, why = _from_json(line)
                yield JsonLine(name, where, value, length, why)
    except OSError as error:
        yield JsonLine(str(path), str(path), None, 0, f"cannot be read: {error.strerror}")


def with_lines_before(place: str, lines: int) -> str:
    """The name or place of a line of a part that begins in the middle of a file, by its number in the file.

    Args:
        place: of a ``JsonLine``; no path has the mark of a relative number, which is a zero byte.
        lines: of the file before the part.
    """
    return _RELATIVE.sub(lambda match: str(lines + int(match[1])), place)


def has_lines_of_json(path: Path) -> bool:
    """Whether the first line that is not blank is a JSON object; a file that cannot be read is left to its reader."""
    first = next(lines_of_json(path), None)
    return first is None or isinstance(first.value, dict) or first.why.startswith("cannot be read")


def _from_json(line: bytes) -> tuple[Any, str]:
    """The value of a line, and why it has none."""
    if len(line) > MOST_VALUES and count_values(line, MOST_VALUES) > MOST_VALUES:
        return None, f"more than {MOST_VALUES:,} JSON values"
    if len(line) > LARGEST_WIDE and _WIDE.search(line):
        return None, f"longer than {LARGEST_WIDE:,} bytes, with characters beyond U+FFFF"
    try:
        return json.loads(line.decode()), ""
    except UnicodeDecodeError as error:
        return None, f"not UTF-8 at byte {error.start} of the line"
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return None, f"not usable JSON: {error}"


def parquet(path: Path, field: str, report: Report, begin: int = 0, end: int | None = None) -> Documents:
    """Reads one document per row of the string column ``field``; an unreadable row group is one corrupt record."""
    for where, row in parquet_rows(path, (field,), report, ROWS_PER_READ, begin, end):
        if (text := arrow_text(row[field], field, where, report)) is not None:
            yield where, text


def parquet_rows(
    path: Path, wanted: Sequence[str], report: Report, together: int, begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Reads rows: the place of each in words, and its Arrow scalars by column.

    Args:
        path: the file.
        wanted: names of columns, of which there is at least one.
        report: receives what is unreadable: the file, or a row group as one record.
        together: most rows that are in memory at a time; fewer where they may be large.
        begin: first row group that is read.
        end: the one behind the last; None is all.
    """
    pyarrow, reader = _extra("pyarrow"), _extra("pyarrow.parquet")
    try:
        file = reader.ParquetFile(parquet_input(path), memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        return report(str(path), f"not readable as parquet: {first_line(error)}")
    with file:
        names = file.schema_arrow.names
        columns = [name for name in wanted if name in names]
        if not columns:
            return report(str(path), f"no column {' or '.join(map(repr, wanted))}, only {', '.join(names)}")
        if twice := [name for name in columns if names.count(name) > 1]:
            return report(str(path), f"several columns {twice[0]!r}")
        row = sum(file.metadata.row_group(group).num_rows for group in range(begin))
        for group in range(begin, file.num_row_groups if end is None else end):
            end = row + file.metadata.row_group(group).num_rows
            try:
                rows = _rows_at_once(path, file.metadata.row_group(group), columns, together)
                for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                    for values in zip(*batch.columns, strict=True):
                        where, row = f"{path}, row {row}", row + 1
                        yield where, dict(zip(columns, values, strict=True))
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                report(f"{path}, rows {row} to {end - 1}", f"row group {group} is broken: {first_line(error)}")
            row = end


def parquet_input(path: Path | ObjectPath) -> Path | BinaryIO:
    """What pyarrow opens of a file of Parquet: its path, or an object as a file."""
    return path if isinstance(path, Path) else path.open("rb")


def row_group_sizes(path: Path | ObjectPath, field: str) -> list[int]:
    """Bytes of each row group in a file; empty where the file, its footer or its column has something to report."""
    pyarrow, reader = _extra("pyarrow"), _extra("pyarrow.parquet")
    try:
        with reader.ParquetFile(parquet_input(path)) as file:
            if file.schema_arrow.names.count(field) != 1:
                return []
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]
    except (pyarrow.ArrowException, OSError):
        return []


def _rows_at_once(path: Path, group: Any, columns: Sequence[str], together: int) -> int:
    """How many rows of a group to read at a time: each cell may be as large as the largest page.

    Raises:
        ValueError: a page is a bomb, or its header cannot be read.
    """
    largest = 1
    for page in page_sizes(path, group, columns):
        if page.size > max(LARGEST_RECORD, _MOST_COMPRESSED * page.stored):
            raise ValueError(f"{page.stored:,} bytes would become a page of {page.size:,}")
        largest = max(largest, page.size)
    return max(1, min(together, LARGEST_RECORD // largest))


def arrow_text(value: object, field: str, where: str, report: Report) -> str | None:
    """The text of a cell of Arrow, or None and a report; ``field`` is its column, and ``where`` its place in words."""
    try:
        buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
        if buffer is not None and buffer.size > LARGEST_RECORD:
            return report(where, f"longer than {LARGEST_RECORD:,} bytes")
        record = {field: value.as_py()}
    except UnicodeDecodeError as error:
        return report(where, f"not UTF-8 at byte {error.start} of the text")
    return checked_text(record, field, where, report)


def huggingface(path: str, subset: str, split: str, field: str, report: Report) -> Documents:
    """Reads one document per record of a streamed Hugging Face data set.

    Raises:
        UserError: if the data set cannot be loaded, or reading fails: a corpus that a lost connection cut short is
            never accepted as complete, whatever ``on_corrupt`` is.
    """
    datasets = _extra("datasets")
    what = f"{path}{f' ({subset})' if subset else ''}, split {split}"
    row = 0
    try:
        stream = iter(undecoded(datasets.load_dataset(path, subset or None, split=split, streaming=True)))
    except Exception as error:
        raise UserError(f"cannot load the data set {what}: {first_line(error)}") from None
    while True:
        try:
            record = next(stream)
        except StopIteration:
            return
        except Exception as error:
            raise UserError(f"reading the data set {what} broke off at row {row}: {first_line(error)}") from None
        where, row = f"{path}, split {split}, row {row}", row + 1
        if (text := checked_text(record, field, where, report)) is not None:
            yield where, text


def undecoded(rows: Any) -> Any:
    """The rows of a Hugging Face data set with images, sound and video as they are stored.

    To decode them would open whatever path or URL a row names, in any column.
    """
    if hasattr(rows, "to_iterable_dataset"):
        rows = rows.to_iterable_dataset()
    return rows.decode(False) if getattr(rows, "features", None) else rows


def checked_text(record: object, field: str, where: str, report: Report) -> str | None:
    """Returns the string at ``field`` of a record; reports an unusable record and returns None."""
    if not isinstance(record, dict):
        return report(where, f"a JSON {type(record).__name__}, not an object")
    if field not in record:
        return report(where, f"no field {field!r}, only {', '.join(map(repr, list(record)[:8])) or 'nothing'}")
    text = record[field]
    if not isinstance(text, str):
        return report(where, f"field {field!r} is {'null' if text is None else type(text).__name__}, not a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        return report(where, f"field {field!r} holds half a surrogate pair, which no UTF-8 text can")
    return text


def _extra(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise UserError(f'this source needs {package}, which is not installed: pip install "k2jax[data]"') from None


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
