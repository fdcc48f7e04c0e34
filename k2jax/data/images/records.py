"""Records of conversations with images by file: JSON lines, Parquet as Hugging Face writes it, and WebDataset tar.

The images of the last two are in the file itself and become data URLs, so that a record stands alone.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import json
from pathlib import Path
import tarfile
from typing import Any, NamedTuple

from k2jax.data.images.processor import MEDIA_TYPES
from k2jax.data.images.reading import ReadLimits
from k2jax.data.records import Report, json_lines, parquet_rows
from k2jax.errors import UserError, abbreviate

_CAPTION = "txt"
_TEXT_MEMBERS = ("json", _CAPTION)
_COLUMNS = ("messages", "document", "tools", "augment", "images", "image")


class PlacedRecord(NamedTuple):
    """A record and where it is, in words; ``value`` is a JSON value."""

    where: str
    value: Any


def visual_records(path: Path, limits: ReadLimits, report: Report) -> Iterator[PlacedRecord]:
    """The records of a file, by its suffix.

    Args:
        path: a ``.parquet`` or ``.tar`` file; every other is read as JSON lines.
        limits: largest file of an image; a larger member of a tar is not read.
        report: receives what is unusable.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path, report)
    elif path.suffix == ".tar":
        yield from _tar(path, limits, report)
    else:
        for _, where, record, _ in json_lines(path, report):
            yield PlacedRecord(where, record)


def _parquet(path: Path, report: Report) -> Iterator[PlacedRecord]:
    """Rows with ``messages`` or ``document`` (lists, or their JSON), and their ``images`` in order."""
    for where, row in parquet_rows(path, _COLUMNS, report):
        try:
            record = {key: _plain(value.as_py()) for key, value in row.items()}
            shown = record.pop("images", None) or [record.pop("image", None)]
            record = {key: json.loads(value) if isinstance(value, str) else value for key, value in record.items()}
            yield PlacedRecord(where, _filled(record, _in_order([_cell(image) for image in shown if image])))
        except (UserError, ValueError, RecursionError) as error:
            report(where, str(error))


def _plain(value: Any) -> Any:
    """A value without the nulls by which Parquet fills keys that only other rows have."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _cell(image: Any) -> str:
    """An image of a row: its bytes, or a struct of ``bytes`` and ``path``, or a path."""
    data = image.get("bytes") if isinstance(image, Mapping) else image
    if isinstance(data, bytes):
        return _data_url(data)
    path = image.get("path") if isinstance(image, Mapping) else image
    if not isinstance(path, str):
        raise UserError(f"an image is {abbreviate(image)}, neither bytes nor a path")
    return path


def _tar(path: Path, limits: ReadLimits, report: Report) -> Iterator[PlacedRecord]:
    """Samples of a WebDataset: consecutive members of one key, ``KEY.json`` or a caption ``KEY.txt``, and images."""
    try:
        with tarfile.open(path) as archive:
            files = (member for member in archive if member.isreg())
            for key, members in itertools.groupby(files, lambda member: _key(member.name)):
                where = f"{path}, sample {key}"
                try:
                    yield PlacedRecord(where, _sample(archive, list(members), limits))
                except (UserError, ValueError, RecursionError) as error:
                    report(where, str(error))
    except (tarfile.TarError, OSError, EOFError) as error:
        report(str(path), f"not readable as tar: {error}")


def _key(name: str) -> str:
    """The name of a member up to the first full stop of its last part."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _sample(archive: tarfile.TarFile, members: list[tarfile.TarInfo], limits: ReadLimits) -> Any:
    most, contents = limits.megabytes * 1e6, {}
    for member in members:
        if member.size > most:
            raise UserError(f"{member.name} has {member.size / 1e6:,.1f} MB; at most {limits.megabytes:g} are read")
        contents[member.name.removeprefix(_key(member.name) + ".")] = archive.extractfile(member).read()
    described = json.loads(contents.get("json", b"{}"))
    images = {name: _data_url(data) for name, data in contents.items() if name not in _TEXT_MEMBERS}
    conversation = isinstance(described, Mapping) and not {"messages", "document"}.isdisjoint(described)
    if not conversation and _CAPTION in contents:
        question = [{"type": "image"} for _ in images]
        caption = contents[_CAPTION].decode()
        described = {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": caption}]}
    by_name = images | {f"{_key(members[0].name)}.{name}": url for name, url in images.items()}
    return _filled(described, _in_order(list(images.values())), by_name)


def _data_url(data: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


def _in_order(images: Sequence[str]) -> Callable[[], str]:
    """What gives the next image at each call."""
    left = iter(images)

    def following() -> str:
        image = next(left, None)
        if image is None:
            raise UserError(f"it has {len(images)} images, fewer than parts that show one")
        return image

    return following


def _filled(record: Any, following: Callable[[], str], by_name: Mapping[str, str] | None = None) -> Any:
    """A record whose parts of media without a value, or with the name of a member, have the image."""
    if not isinstance(record, Mapping):
        return record

    def of(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in MEDIA_TYPES:
            return part
        value = part.get(kind)
        if value is None:
            return {**part, kind: following()}
        names = by_name or {}
        if isinstance(value, list):
            return {**part, kind: [names.get(each, each) if isinstance(each, str) else each for each in value]}
        return {**part, kind: names.get(value, value)} if isinstance(value, str) else part

    def of_message(message: Any) -> Any:
        content = message.get("content") if isinstance(message, Mapping) else None
        return {**message, "content": [of(part) for part in content]} if isinstance(content, list) else message

    filled = dict(record)
    if isinstance(messages := record.get("messages"), list):
        filled["messages"] = [of_message(message) for message in messages]
    if isinstance(document := record.get("document"), list):
        filled["document"] = [of(part) for part in document]
    return filled
