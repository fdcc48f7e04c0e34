"""A model's answer as it arrives, as events: its reasoning, its text and its calls of tools; a base of all parsers.

Nothing is lost: every event has the input to which it corresponds (``raw``), and their concatenation is the input. How
the input was split into pieces affects only where neighboring content, arguments or markup are split.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k2jax.files.bounded_json import parse_bounded_json
from k2jax.text.messages import THINK_BEGIN, THINK_END
from k2jax.text.special_token_scanner import UNKNOWN, Segment, SpecialTokenScanner
from k2jax.text.tokenizer import Tokenizer

MESSAGE_END = "<|im_end|>"
"""Meaning of a special token that ends a message, whatever its name."""
THINKING = {name: name for name in (THINK_BEGIN, THINK_END)}

# Violations of the formats.
NO_END = "call without an end"
BAD_JSON = "arguments are not a JSON object"
NO_NAME = "call without a name"
NO_BEGIN = "special token without its begin"
AFTER_END = "text after the end of the message"
STRAY_TOKEN = "special token without a meaning"


@dataclass(frozen=True)
class Event:
    """One step of an answer; ``raw`` is the input to which it corresponds."""

    raw: str


@dataclass(frozen=True)
class Content(Event):
    """Text of the answer: ``raw``."""


@dataclass(frozen=True)
class Reasoning(Event):
    """Text of the reasoning before the answer: ``raw``."""


@dataclass(frozen=True)
class CallStart(Event):
    """The beginning of a tool call: its index in the answer, its id, and its function's name.

    The id is as the model wrote it; in formats without ids it is ``functions.NAME:INDEX``.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments(Event):
    """A piece of the arguments of call ``index``: ``raw``."""

    index: int


@dataclass(frozen=True)
class CallEnd(Event):
    """The end of call ``index``: its complete arguments, verbatim, and its violations of the format."""

    index: int
    arguments: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Markup(Event):
    """Input that is neither content nor a call: the format's own, or with a ``problem`` a violation of the format."""

    problem: str | None = None


@dataclass(frozen=True)
class Finished(Event):
    """The end of the answer; ``reason`` is ``tool_calls`` or ``stop``. Only ``Markup`` can follow."""

    reason: str


class AnswerParser(ABC):
    """Turns pieces of an answer, as text or token ids, into events; it accepts every answer.

    With a tokenizer, the name of one of its special tokens is recognized only as that token id. A format's parser adds
    ``_state``, a generator that receives the next segment with the meaning of a special token or None; it changes with
    the answer.

    Attributes:
        problems: violations of the format so far, each once.
    """

    def __init__(self, meanings: Mapping[str, str], tokenizer: Tokenizer | None, shows_all: bool):
        """Starts on an answer.

        Args:
            meanings: of special tokens, by name.
            tokenizer: the vocabulary, which token ids need.
            shows_all: whether special tokens without a meaning are text, by name.

        Raises:
            UserError: the tokenizer is not byte-level.
        """
        ends = {} if tokenizer is None else {tokenizer.special_name(tokenizer.eos): MESSAGE_END}
        self._scanner = SpecialTokenScanner({**meanings, **ends}, tokenizer)
        self._shows_all = shows_all
        self.problems: list[str] = []
        self._state = self._in_content
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._starts: list[CallStart] = []
        self._arguments: list[str] = []  # of the call that is read: their text
        self._flaws: list[str] = []  # violations of the format in that call
        self._ends: list[CallEnd] = []

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far in OpenAI's format: complete calls only, their arguments verbatim; reasoning if any."""
        calls = [
            {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": end.arguments}}
            for start, end in zip(self._starts, self._ends, strict=False)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        return message | ({"tool_calls": calls} if calls else {})

    def feed(self, text: str) -> list[Event]:
        """Returns the events of the next piece of text."""
        return self._dispatch(self._scanner.scan_text(text))

    def feed_ids(self, ids: Iterable[int]) -> list[Event]:
        """Returns the events of the next token ids; ids outside the vocabulary are ignored."""
        return [event for i in ids for event in self._dispatch(self._scanner.scan_token(int(i)))]

    def end(self) -> list[Event]:
        """Returns the events of the end of input: it ends what is open, with ``Finished`` unless it came before."""
        events = self._dispatch(self._scanner.flush())
        return events if self._state == self._after_end else [*events, *self._state("", MESSAGE_END)]

    def _dispatch(self, segments: Iterable[Segment]) -> list[Event]:
        return [event for raw, token in segments for event in self._state(raw, self._meaning(token))]

    def _meaning(self, token: str | None) -> str | None:
        """A token's meaning in this state: within calls those of reasoning are text."""
        if token == UNKNOWN:
            return None if self._shows_all else UNKNOWN
        return None if token in THINKING and self._is_in_call() else token

    @abstractmethod
    def _is_in_call(self) -> bool:
        """Whether the state is within a call, or among calls."""

    @abstractmethod
    def _in_content(self, raw: str, token: str | None) -> Iterator[Event]:
        """The state in which an answer begins."""

    def _after_end(self, raw: str, token: str | None) -> Iterator[Event]:
        yield self._stray(raw, AFTER_END)

    # What states do.

    def _add_content(self, raw: str) -> Content:
        self._content.append(raw)
        return Content(raw)

    def _add_reasoning(self, raw: str) -> Reasoning:
        self._reasoning.append(raw)
        return Reasoning(raw)

    def _add_arguments(self, raw: str) -> CallArguments:
        self._arguments.append(raw)
        return CallArguments(raw, len(self._ends))

    def _start(self, raw: str, call_id: str, name: str) -> CallStart:
        self._starts.append(CallStart(raw, len(self._starts), call_id, name))
        return self._starts[-1]

    def _end(self, raw: str) -> CallEnd:
        arguments = "".join(self._arguments)
        if not is_json_object(arguments):
            self._flaws.append(BAD_JSON)
        for flaw in self._flaws:
            self._note(flaw)
        self._ends.append(CallEnd(raw, len(self._ends), arguments, tuple(self._flaws)))
        self._arguments, self._flaws = [], []
        return self._ends[-1]

    def _finish(self, raw: str) -> Finished:
        self._state = self._after_end
        return Finished(raw, "tool_calls" if self._ends else "stop")

    def _stray(self, raw: str, problem: str) -> Markup:
        self._note(problem)
        return Markup(raw, problem)

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def is_json_object(text: str) -> bool:
    """Whether a text is one JSON object."""
    try:
        return isinstance(parse_bounded_json(text), dict)
    except ValueError:
        return False
