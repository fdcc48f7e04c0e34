"""Records of conversations with images by file: JSON lines, Parquet as Hugging Face writes it, and WebDataset tar.

The images of the last two are in the file itself and become data URLs, so that a record stands alone. What cannot be
used is a line in its place.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
import json
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.data.images.processor import MEDIA_TYPES
from k2jax.data.images.reading import ReadLimits
from k2jax.data.images.tar_samples import TarSample, tar_samples
from k2jax.errors import UserError, abbreviate
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.readers import first_line, lines_of_json, parquet_rows
from k2jax.text.messages import with_parts

_MESSAGES, _DOCUMENT = "messages", "document"
_OTHERS = ("tools", "augment")
_IMAGES = ("images", "image")
_ROWS = 4  # of Parquet that are in memory at a time: each may have many images


class PlacedRecord(NamedTuple):
    """A record, or why there is none.

    Attributes:
        where: its place, in words.
        value: a JSON value.
        why: what is wrong; empty where nothing is.
    """

    where: str
    value: Any
    why: str = ""


def visual_records(path: Path | ObjectPath, limits: ReadLimits) -> Iterator[PlacedRecord]:
    """The records of a file, by its suffix.

    Args:
        path: a ``.parquet`` or ``.tar`` file; every other is read as JSON lines.
        limits: largest file of an image.

    Raises:
        UserError: the file lies in a store, which failed for too long.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(path, limits)
    elif suffix == ".tar":
        for sample in tar_samples(path, limits):
            yield _placed(sample.where, lambda sample=sample: _of_sample(sample))
    else:
        for line in lines_of_json(path):
            yield PlacedRecord(line.where, line.value, line.why)


def _placed(where: str, record: Callable[[], Any]) -> PlacedRecord:
    """A record that a function makes, or the line in its place."""
    try:
        return PlacedRecord(where, record())
    except Exception as error:  # Arrow's conversions raise a dozen types on odd cells, as JSON does on odd texts
        return PlacedRecord(where, None, abbreviate(first_line(error), 300))


def _parquet(path: Path | ObjectPath, limits: ReadLimits) -> Iterator[PlacedRecord]:
    """Rows with ``messages`` or ``document`` (lists, or their JSON), and their ``images`` in order."""
    unreadable: list[PlacedRecord] = []
    columns = (_MESSAGES, _DOCUMENT, *_OTHERS, *_IMAGES)
    for where, row in parquet_rows(path, columns, lambda *line: unreadable.append(_failed(*line)), _ROWS):
        yield from unreadable
        unreadable.clear()
        yield _placed(where, lambda row=row: _of_row(row, limits))
    yield from unreadable


def _failed(where: str, why: str) -> PlacedRecord:
    return PlacedRecord(where, None, why)


def _of_row(row: Mapping[str, Any], limits: ReadLimits) -> Any:
    cells = {key: value.as_py() for key, value in row.items()}
    shown = [_cell(image, limits) for key in _IMAGES for image in _listed(cells.get(key))]
    record = {key: _plain(_json(cells.get(key))) for key in _OTHERS}
    if (messages := _json(cells.get(_MESSAGES))) is not None:
        record[_MESSAGES] = _plain(messages)
    else:
        record[_DOCUMENT] = _plain(_json(cells.get(_DOCUMENT)))
    record = {key: value for key, value in record.items() if value is not None}
    json.dumps(record)  # a cell may hold what JSON does not, such as a date
    return _filled(record, dict(enumerate(shown)))


def _json(value: Any) -> Any:
    """A cell that may be JSON; an empty one is nothing."""
    return (json.loads(value) if value.strip() else None) if isinstance(value, str | bytes) else value


def _listed(images: Any) -> list[Any]:
    """The images of a cell, which is a list, or one of them."""
    return images if isinstance(images, list) else [] if images is None else [images]


def _plain(value: Any) -> Any:
    """A value without the nulls by which Parquet fills keys that only other rows have."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _cell(image: Any, limits: ReadLimits) -> str:
    """An image of a row: its bytes, or a struct of ``bytes`` and ``path``, or a path."""
    data = image.get("bytes") if isinstance(image, Mapping) else image
    if isinstance(data, bytes):
        if len(data) > limits.megabytes * 1e6:
            raise UserError(f"an image has {len(data) / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")
        return _data_url(data)
    path = image.get("path") if isinstance(image, Mapping) else image
    if not isinstance(path, str):
        raise UserError(f"an image is {abbreviate(image)}, neither bytes nor a path")
    return path


def _of_sample(sample: TarSample) -> Any:
    """The record of a sample of a tar: its JSON, or its caption as an answer to its images."""
    if sample.why:
        raise UserError(sample.why)
    record = json.loads(sample.json or b"{}")
    conversation = isinstance(record, Mapping) and not {_MESSAGES, _DOCUMENT}.isdisjoint(record)
    if not conversation and sample.caption is not None:
        question = [{"type": "image"} for _ in sample.images]
        answer = {"role": "assistant", "content": sample.caption.decode()}
        record = {_MESSAGES: [{"role": "user", "content": question}, answer]}
    return _filled(record, {name: _data_url(data) for name, data in sample.images.items()}, sample.key)


def _data_url(data: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


def _filled(record: Any, images: Mapping[Any, str], key: str = "") -> Any:
    """A record whose parts of media have their images.

    Args:
        record: its value.
        images: by name, in order. A part without a value takes the next that no part has yet.
        key: stands before a full stop and the names, where parts name members by their whole names.

    Raises:
        UserError: there are fewer images than parts, or more.
    """
    if not isinstance(record, Mapping):
        return record
    left = dict(images)
    names = {f"{key}.{name}": name for name in images} | {name: name for name in images} if key else {}

    def named(value: Any) -> Any:
        name = names.get(value) if isinstance(value, str) else None
        if name is None:
            return value
        left.pop(name, None)
        return images[name]

    def given(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        value = part.get(kind) if kind in MEDIA_TYPES else None
        if value is None:
            return part
        return {**part, kind: [named(each) for each in value] if isinstance(value, list) else named(value)}

    def following(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in MEDIA_TYPES or part.get(kind) is not None:
            return part
        if not left:
            raise UserError(f"it has {len(images)} images, fewer than parts that show one")
        return {**part, kind: left.pop(next(iter(left)))}

    filled = _with_parts(_with_parts(record, given), following)
    if left:
        raise UserError(f"{len(left)} of its {len(images)} images are in no part; a part of type image shows one")
    return filled


def _with_parts(record: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The record with every part of its document, or of its messages' content, changed by a function."""
    if isinstance(messages := record.get(_MESSAGES), list):
        return {**record, _MESSAGES: with_parts(messages, change)}
    document = record.get(_DOCUMENT)
    return {**record, _DOCUMENT: [change(part) for part in document]} if isinstance(document, list) else dict(record)
