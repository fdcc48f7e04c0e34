"""Calls of tools that a model writes as one JSON object, ``{"name": NAME, "arguments": {…}}``, read as they arrive."""

from __future__ import annotations

import json
import re

from k2jax.files.bounded_json import parse_bounded_json

ARGUMENT_KEYS = ("arguments", "parameters")
"""Keys of the arguments: formats write the first or the second, and models sometimes the other one."""
BAD_CALL = "call is not a JSON object"
"""A violation of the format."""
LONGEST_HEAD = 512
"""Characters before the arguments up to which a call is read as it arrives; a longer one is read at its end."""

_STRING = r'"(?:[^"\\]|\\.)*"'
_KEY = re.compile(rf"\s*({_STRING})\s*:\s*", re.DOTALL)
_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*({_STRING})\s*,\s*"(?:{"|".join(ARGUMENT_KEYS)})"\s*:\s*(?=\S)', re.DOTALL)
_TAIL = re.compile(r"\s*\}\s*")
_COMMA = re.compile(r"\s*,")


class JsonValue:
    """Finds the end of a JSON value that arrives in pieces; it checks brackets and quotes, and nothing else.

    Attributes:
        is_whole: whether the value has ended.
    """

    def __init__(self):
        self.is_whole = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def feed(self, text: str) -> int:
        """Returns how many characters of the next piece belong to the value."""
        for at, character in enumerate(text):
            if self.is_whole:
                return at
            if self._in_string:
                self._read_string(character)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]" and self._depth:
                self._depth -= 1
                self.is_whole = not self._depth
            elif not self._depth and (character in "}]," or character.isspace()):  # after a number or a word
                self.is_whole = True
                return at
        return len(text)

    def _read_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            self.is_whole = not self._depth


class JsonCall:
    """One call, whose parts concatenate to what was read: ``head``, arguments, ``tail``.

    Attributes:
        name: the function's name; empty until it and the beginning of the arguments have been read.
        head: text before the arguments; all of it until there are some.
        tail: text after the arguments.
    """

    def __init__(self):
        self.name = self.head = self.tail = ""
        self._value = JsonValue()
        self._arguments: list[str] = []

    def feed(self, text: str) -> str:
        """Returns the next piece of the arguments, often empty."""
        if self.name:
            return self._split(text)
        self.head += text
        match = _HEAD.match(self.head) if len(self.head) - len(text) <= LONGEST_HEAD else None
        return self._begin(match[1], match.end()) if match else ""

    def end(self) -> str:
        """Returns the arguments of a call that has its keys in another order, or a long name; no text follows."""
        if self.name:
            return ""
        spans = _spans(self.head)
        begin, end = spans.get("name", (0, 0))
        name = self.head[begin:end]
        begin, end = next((spans[key] for key in ARGUMENT_KEYS if key in spans), (len(self.head), 0))
        return self._begin(name, begin) if name.startswith('"') else ""

    @property
    def is_well_formed(self) -> bool:
        """Whether what was read is a JSON object."""
        if _TAIL.fullmatch(self.tail) and _HEAD.match(self.head + "x"):
            return True  # as models write it: the arguments themselves are checked by who reads them
        try:
            return isinstance(parse_bounded_json(self.head + "".join(self._arguments) + self.tail), dict)
        except ValueError:
            return False

    def _begin(self, name: str, at: int) -> str:
        self.name = _text(name)
        if not self.name:
            return ""
        self.head, rest = self.head[:at], self.head[at:]
        return self._split(rest)

    def _split(self, text: str) -> str:
        at = self._value.feed(text)
        self._arguments.append(text[:at])
        self.tail += text[at:]
        return text[:at]


def _text(literal: str) -> str:
    try:
        return json.loads(literal, strict=False)
    except ValueError:
        return ""


def _spans(text: str) -> dict[str, tuple[int, int]]:
    """Where the values of an object's keys stand in a text; those before the first mistake."""
    spans: dict[str, tuple[int, int]] = {}
    at = len(text) - len(text.lstrip())
    if not text.startswith("{", at):
        return {}
    while match := _KEY.match(text, at + 1):
        begin = match.end()
        end = begin + JsonValue().feed(text[begin:])
        spans.setdefault(_text(match[1]), (begin, end))
        comma = _COMMA.match(text, end)
        if comma is None:
            break
        at = comma.end() - 1
    return spans


_PARTS = (
    *(r"\s*", r"\{", r"\s*", *'"name"', r"\s*", ":", r"\s*", '"', r'(?:[^"\\]|\\.)*(?:\\\Z)?', '"'),
    *(r"\s*", ",", r"\s*", '"'),
)


def _beginnings(key: str) -> re.Pattern[str]:
    """What matches every beginning of a call whose arguments have this key, up to the key's colon."""
    pattern = ""
    for part in reversed((*_PARTS, *key, '"', r"\s*", ":", r"\s*")):
        pattern = f"(?:{part}{pattern})?"
    return re.compile(pattern, re.DOTALL)


_BEGINNINGS = tuple(map(_beginnings, ARGUMENT_KEYS))


def may_begin_call(text: str) -> bool:
    """Whether a text may become a call, its name first and then its arguments, of which it has nothing yet."""
    return len(text) <= LONGEST_HEAD and any(pattern.fullmatch(text) for pattern in _BEGINNINGS)
