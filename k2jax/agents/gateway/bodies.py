"""Bodies of a rollout's requests, each of which mostly begins like an earlier one: what is new in them is parsed alone.

An agent sends its whole history with every request. Two bodies that are equal byte by byte up to the end of a message
have the same value up to there, and the later one gets the very objects of the earlier one, so that what was found out
about these holds too (``Once``). A body that is unusual in any way is left to ``parse_json``: the same bodies are
refused here as elsewhere, in the same words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
import dataclasses
import itertools
import json
import re
import sys
from typing import Any, TypeVar

import numpy as np

from k2jax.agents.api.dialect import Dialect
from k2jax.agents.api.encoding import check_surrogates, parse_json
from k2jax.agents.api.once import Findings, Once
from k2jax.files.bounded_json import (
    MARKS,
    MOST_VALUES,
    count_marks,
    is_read_as_it_stands,
    refuse_constant,
)

MOST_KEPT = 16 << 20
"""Memory of the bodies of a rollout that are kept, at most and roughly [bytes]."""
_BODIES = 4
"""Bodies that are kept at most: an agent and its sub-agents have a history each."""
_MOST_MESSAGES = 10_000
"""New messages of a body that is kept: to go through them one by one takes ten times as long as to parse them all."""
_MOST_LEVELS = 200
"""Levels of values in values: far fewer than the interpreter's stack has room for."""
_MESSAGE_BYTES = 2048
"""Memory of what is found out about a message beside its texts, roughly [bytes]."""
_SPACE = re.compile(r"[ \t\n\r]*")
_SCAN = json.JSONDecoder(parse_constant=refuse_constant).scan_once
Read = TypeVar("Read")


class _UnusualBodyError(ValueError):
    """A body that is left to ``parse_json``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownBody:
    """A body that a later one may continue.

    Attributes:
        dialect: of its endpoint.
        data: as it arrived.
        before: the fields in front of its history.
        messages: its history.
        ends: where each of these ends in ``data``.
        marks: of ``data`` up to each end, see ``count_marks``.
        sizes: memory of its values up to each end [bytes].
        found: about its messages.
    """

    dialect: Dialect
    data: bytes
    before: dict[str, Any]
    messages: list[Any]
    ends: list[int]
    marks: list[int]
    sizes: list[int]
    found: Findings

    @property
    def size(self) -> int:
        """Memory that it takes while it is kept, with what is found out about it, roughly [bytes]."""
        return len(self.data) + 2 * self.sizes[-1] + _MESSAGE_BYTES * len(self.messages)


class RepeatedBodies:
    """The bodies of one rollout that later ones may continue. Any thread may read one at any time."""

    def __init__(self):
        self._kept: tuple[KnownBody, ...] = ()  # the latest first; replaced as a whole, because threads read it

    def read(self, data: bytearray, dialect: Dialect, read: Callable[[Any, Once], Read]) -> Read:
        """What ``read(value, once)`` returns of the value of a body.

        Args:
            data: the body, which is emptied.
            dialect: of its endpoint.
            read: reads the value, which it must not change. What it finds out about objects of the history need not be
                found out again where a later body has the same objects.

        Raises:
            ApiError: see ``parse_json``, or what ``read`` raises; then the body is not kept.
        """
        try:
            known, count = self._most_alike(data, dialect)
            body, after = _parsed(bytes(data), dialect, known, count)
        except (ValueError, StopIteration, RecursionError):
            return read(parse_json(data), Once())
        data.clear()
        once = Once(body.found)
        result = read({**body.before, dialect.history: body.messages, **after}, once)
        is_continued = known is not None and 2 * count >= len(known.messages)  # else by a sub-agent's, perhaps
        self._keep(dataclasses.replace(body, found=once.found), known if is_continued else None)
        return result

    def forget(self) -> None:
        """Frees what is kept."""
        self._kept = ()

    def _most_alike(self, data: bytearray, dialect: Dialect) -> tuple[KnownBody | None, int]:
        """The body that another one continues, as far as they are equal, and how many of its messages are repeated."""
        alike = [(bisect_right(body.ends, _common(body.data, data)), body) for body in self._kept]
        alike = [(count, body) for count, body in alike if count and body.dialect is dialect]
        count, known = max(alike, key=lambda pair: pair[0], default=(0, None))
        return known, count

    def _keep(self, body: KnownBody, replaced: KnownBody | None) -> None:
        """Keeps a body, in the place of another one, if any, and forgets the oldest where there is no room."""
        kept = [body, *(other for other in self._kept if other is not replaced)][:_BODIES]
        sizes = itertools.accumulate(other.size for other in kept)
        self._kept = tuple(other for other, size in zip(kept, sizes, strict=True) if size <= MOST_KEPT)


class _Walk:
    """Goes through the text of a JSON document.

    Its methods raise ValueError, StopIteration or RecursionError where the text goes on otherwise.
    """

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def mark(self) -> str:
        """The next character that is no space; none at the end."""
        self.at = _SPACE.match(self.text, self.at).end() + 1  # type: ignore[union-attr]
        return self.text[self.at - 1 : self.at]

    def expect(self, mark: str) -> None:
        """Goes past a character."""
        if self.mark() != mark:
            raise _UnusualBodyError

    def value(self) -> Any:
        """The next value."""
        value, self.at = _SCAN(self.text, _SPACE.match(self.text, self.at).end())  # type: ignore[union-attr]
        return value

    def name(self) -> str:
        """The name of a field, and its colon."""
        name = self.value()
        if not isinstance(name, str):
            raise _UnusualBodyError
        self.expect(":")
        return name

    def fields_before(self, history: str) -> dict[str, Any]:
        """The fields in front of the history, whose list is entered."""
        self.expect("{")
        fields = {}
        while (name := self.name()) != history:
            fields[name] = self.value()
            self.expect(",")
        self.expect("[")
        return fields

    def messages(self, is_first: bool) -> tuple[list[Any], list[int]]:
        """The messages up to the end of the history, from the first one on or behind another, and where they end.

        Where an earlier body ends a number, a later one may go on with its digits, and is unusual.
        """
        messages, ends = [], []
        while is_first or (mark := self.mark()) == ",":
            messages.append(self.value())
            ends.append(self.at)
            is_first = False
            if len(messages) > _MOST_MESSAGES:
                raise _UnusualBodyError
        if mark != "]":
            raise _UnusualBodyError
        return messages, ends

    def fields_after(self) -> dict[str, Any]:
        """The fields behind the history, up to the end of the document."""
        fields = {}
        while (mark := self.mark()) == ",":
            name = self.name()
            fields[name] = self.value()
        if mark != "}" or self.mark():
            raise _UnusualBodyError
        return fields


def _parsed(data: bytes, dialect: Dialect, known: KnownBody | None, count: int) -> tuple[KnownBody, dict[str, Any]]:
    """A body of which ``count`` messages are known, and the fields behind its history.

    Raises:
        ValueError, StopIteration, RecursionError: it is unusual.
    """
    start, marks = (known.ends[count - 1], known.marks[count - 1]) if known else (0, 0)
    rest = data[start:]
    has_room = len(data) <= MOST_KEPT // 4 and 1 + marks + count_marks(rest) <= MOST_VALUES
    if not has_room or not is_read_as_it_stands(data, len(data)):
        raise _UnusualBodyError
    walk = _Walk(rest.decode())
    before = known.before if known else walk.fields_before(dialect.history)
    new, ends = walk.messages(is_first=known is None)
    after = walk.fields_after()
    values = [new, after] if known else [before, new, after]
    if rest.count(b"[") + rest.count(b"{") >= _MOST_LEVELS:
        _check_levels(values)
    if b"\\u" in rest:
        check_surrogates(values)
    if not rest.isascii():
        lengths = [len(walk.text[begin:end].encode()) for begin, end in itertools.pairwise([0, *ends])]
        ends = list(itertools.accumulate(lengths))
    memory = known.sizes[count - 1] if known else _memory(before)
    old = known or KnownBody(dialect=dialect, data=b"", before={}, messages=[], ends=[], marks=[], sizes=[], found={})
    body = KnownBody(
        dialect=dialect,
        data=data,
        before=before,
        messages=[*old.messages[:count], *new],
        ends=[*old.ends[:count], *(start + end for end in ends)],
        sizes=[*old.sizes[:count], *itertools.islice(itertools.accumulate(map(_memory, new), initial=memory), 1, None)],
        marks=[*old.marks[:count], *(marks + before for before in _marks_before(rest, ends))],
        found=old.found,
    )
    return body, after


def _check_levels(values: list[Any]) -> None:
    """Raises where values are nested deep, of which the parser of the whole body may take some levels less."""
    for _ in range(_MOST_LEVELS):
        parents = [value for value in values if isinstance(value, dict | list)]
        values = [item for value in parents for item in (value.values() if isinstance(value, dict) else value)]
        if not values:
            return
    raise _UnusualBodyError


def _marks_before(data: bytes, ends: list[int]) -> list[int]:
    """How many of the marks of ``count_marks``, which are not too many, stand in front of some places, ascending."""
    array = np.frombuffer(data, np.uint8)
    is_mark = np.zeros(len(array), np.bool_)
    for mark in MARKS:
        is_mark |= array == mark
    return np.searchsorted(np.flatnonzero(is_mark), ends).tolist()


def _memory(value: Any) -> int:
    """Memory of a JSON value [bytes]."""
    size, values = 0, [value]
    while values:
        item = values.pop()
        size += sys.getsizeof(item)
        if isinstance(item, dict):
            values += [*item, *item.values()]
        elif isinstance(item, list):
            values += item
    return size


def _common(one: bytes, other: bytes | bytearray) -> int:
    """How many bytes two documents begin with alike."""
    size = min(len(one), len(other))
    different = np.frombuffer(one, np.uint8)[:size] != np.frombuffer(other, np.uint8)[:size]
    return int(different.argmax()) if different.any() else size
