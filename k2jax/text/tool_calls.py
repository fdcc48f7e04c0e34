"""Parses reasoning and tool calls of Kimi's models in an answer as it arrives, also where it violates the format.

Nothing is lost: every event has the input to which it corresponds (``raw``), and their concatenation is the input. How
the input was split into pieces affects only where neighboring content or arguments are split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
import re
from typing import Any

from k2jax.files.bounded_json import parse_bounded_json
from k2jax.text.messages import THINK_BEGIN, THINK_END
from k2jax.text.special_token_scanner import UNKNOWN, Segment, SpecialTokenScanner
from k2jax.text.tokenizer import Tokenizer

_SECTION_BEGIN, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_MESSAGE_END = "<|im_end|>"
_NEXT_MESSAGE = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>")
# Models also write the section in the singular, which no vocabulary has as a special token.
_MEANING = {name: name for name in (_SECTION_BEGIN, _SECTION_END, CALL_BEGIN, _ARGUMENTS, _CALL_END, _MESSAGE_END)} | {
    name.replace("calls", "call"): name for name in (_SECTION_BEGIN, _SECTION_END)
}
_THINKING = {name: name for name in (THINK_BEGIN, THINK_END)}
_CALL_ID = re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:{]+?):(?P<index>[0-9]+))\s*")

# Violations of the format: of a call, then between calls.
NO_SECTION = "call outside a section"
NO_ARGUMENTS = "call without the token that begins its arguments"
INVALID_ID = "call id is not functions.NAME:IDX"
NO_END = "call without an end"
BAD_JSON = "arguments are not a JSON object"
NO_NAME = "call without a name"
NOT_A_CALL = "text or special token between calls"
NO_BEGIN = "special token without its begin"
NO_SECTION_END = "section without an end"
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
    """The beginning of a tool call: its index in the answer, its id as the model wrote it, and its function's name."""

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
    """Input that is neither content nor a call: section tokens, or with a ``problem`` a violation of the format."""

    problem: str | None = None


@dataclass(frozen=True)
class Finished(Event):
    """The end of the answer; ``reason`` is ``tool_calls`` or ``stop``. Only ``Markup`` can follow."""

    reason: str


class ToolCallParser:
    """Turns pieces of an answer, as text or token ids, into events; it accepts every answer.

    With a tokenizer, the name of one of its special tokens is recognized only as that token id.

    Attributes:
        problems: violations of the format so far, each once.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, thinking: bool = False, shows_all: bool = False):
        """Starts on an answer.

        Args:
            tokenizer: the vocabulary, which token ids need.
            thinking: whether the answer begins inside the reasoning, because the prompt has opened it.
            shows_all: whether special tokens without a meaning are text, by name, for readers from whom no token may be
                hidden; otherwise they are markup, and one that begins another message ends this one.

        Raises:
            UserError: the tokenizer is not byte-level.
        """
        ends = {} if tokenizer is None else {tokenizer.special_name(tokenizer.eos): _MESSAGE_END}
        thinks = thinking if tokenizer is None else tokenizer.has_special(THINK_END)
        ends |= {} if shows_all or tokenizer is None else dict.fromkeys(_NEXT_MESSAGE, _MESSAGE_END)
        self._scanner = SpecialTokenScanner(_MEANING | ends | (_THINKING if thinks else {}), tokenizer)
        self._shows_all = shows_all
        self.problems: list[str] = []
        self._state = self._in_reasoning if thinking else self._in_content
        self._reasoning: list[str] = []
        self._in_section = False
        self._head: list[str] = []  # of the call whose id is being read: its begin token, then text
        self._arguments: list[str] = []  # of the call whose arguments are being read: their text
        self._flaws: list[str] = []  # violations of the format in that call
        self._content: list[str] = []
        self._starts: list[CallStart] = []
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
        return events if self._state == self._after_end else [*events, *self._state("", _MESSAGE_END)]

    def _dispatch(self, segments: Iterable[Segment]) -> list[Event]:
        return [event for raw, token in segments for event in self._state(raw, self._meaning(token))]

    def _meaning(self, token: str | None) -> str | None:
        """A token's meaning in this state: within calls those of reasoning are text."""
        if token == UNKNOWN:
            return None if self._shows_all or self._state == self._in_head else UNKNOWN
        outside = self._state in (self._in_content, self._in_reasoning, self._after_end)
        return token if outside or token not in _THINKING else None

    # The states: each receives the next segment, with the meaning of a special token or None.

    def _in_reasoning(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            self._reasoning.append(raw)
            yield Reasoning(raw)
        elif token == THINK_END:
            self._state = self._in_content
            yield Markup(raw)
        elif token in (_SECTION_BEGIN, CALL_BEGIN, _MESSAGE_END):  # they end the reasoning too
            self._state = self._in_content
            yield from self._state(raw, token)
        else:
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)

    def _in_content(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            self._content.append(raw)
            yield Content(raw)
        elif token == _SECTION_BEGIN:
            self._in_section, self._state = True, self._between_calls
            yield Markup(raw)
        elif token == CALL_BEGIN:
            self._open_call(raw)
        elif token == _MESSAGE_END:
            yield self._finish(raw)
        elif token == THINK_BEGIN and not self._content and not self._starts:
            self._state = self._in_reasoning
            yield Markup(raw)
        else:
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)

    def _between_calls(self, raw: str, token: str | None) -> Iterator[Event]:
        if token == CALL_BEGIN:
            self._open_call(raw)
        elif token == _SECTION_END:
            self._in_section, self._state = False, self._in_content
            yield Markup(raw)
        elif token == _MESSAGE_END:
            yield self._finish(raw)
        else:
            # White space is separate, so that the events do not depend on how the text was split.
            for run in re.findall(r"\s+|\S+", raw):
                yield Markup(run) if run.isspace() else self._stray(run, NOT_A_CALL)

    def _in_head(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            self._head.append(raw)
            return
        begin, text = self._head[0], "".join(self._head[1:])
        match = _CALL_ID.match(text)
        if token == _ARGUMENTS:
            if match and match.end() == len(text):
                yield self._start_call(begin + text + raw, match["id"], match["name"])
            else:
                name = text.strip()
                yield self._start_call(begin + text + raw, name, name.removeprefix("functions."), INVALID_ID)
        elif match:
            arguments = text[match.end() :]
            yield self._start_call(begin + match[0], match["id"], match["name"], NO_ARGUMENTS)
            if arguments:
                yield from self._state(arguments, None)
            yield from self._state(raw, token)
        else:
            # There is no name, so this is no call. Its end token, if there is one, belongs to it.
            ended = token == _CALL_END
            self._state = self._outside()
            yield self._stray(begin + text + raw * ended, NO_NAME)
            if not ended:
                yield from self._state(raw, token)

    def _in_arguments(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None or token == _ARGUMENTS:
            self._arguments.append(raw)
            yield CallArguments(raw, len(self._ends))
        elif token == UNKNOWN:
            yield self._stray(raw, STRAY_TOKEN)
        elif token == _CALL_END:
            yield self._end_call(raw)
        else:
            self._flaws.append(NO_END)
            yield self._end_call("")
            yield from self._state(raw, token)

    def _after_end(self, raw: str, token: str | None) -> Iterator[Event]:
        yield self._stray(raw, AFTER_END)

    # The actions of the states.

    def _outside(self) -> Callable[[str, str | None], Iterator[Event]]:
        return self._between_calls if self._in_section else self._in_content

    def _open_call(self, raw: str) -> None:
        self._head, self._arguments = [raw], []
        self._flaws = [] if self._in_section else [NO_SECTION]
        self._state = self._in_head

    def _start_call(self, raw: str, call_id: str, name: str, *flaws: str) -> CallStart:
        self._flaws += flaws
        self._state = self._in_arguments
        self._starts.append(CallStart(raw, len(self._starts), call_id, name))
        return self._starts[-1]

    def _end_call(self, raw: str) -> CallEnd:
        arguments = "".join(self._arguments)
        if not _is_json_object(arguments):
            self._flaws.append(BAD_JSON)
        for flaw in self._flaws:
            self._note(flaw)
        self._state = self._outside()
        self._ends.append(CallEnd(raw, len(self._ends), arguments, tuple(self._flaws)))
        return self._ends[-1]

    def _stray(self, raw: str, problem: str) -> Markup:
        self._note(problem)
        return Markup(raw, problem)

    def _finish(self, raw: str) -> Finished:
        if self._in_section:
            self._note(NO_SECTION_END)
        self._state = self._after_end
        return Finished(raw, "tool_calls" if self._ends else "stop")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(parse_bounded_json(text), dict)
    except ValueError:
        return False
