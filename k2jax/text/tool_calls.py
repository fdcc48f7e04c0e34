"""Parses reasoning and tool calls of Kimi's models in an answer as it arrives, also where it violates the format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import re

from k2jax.text.answers import (
    MESSAGE_END,
    NO_BEGIN,
    NO_END,
    NO_NAME,
    STRAY_TOKEN,
    THINKING,
    AnswerParser,
    CallEnd,
    CallStart,
    Event,
    Finished,
    Markup,
)
from k2jax.text.messages import THINK_BEGIN, THINK_END
from k2jax.text.special_token_scanner import UNKNOWN
from k2jax.text.tokenizer import Tokenizer

_SECTION_BEGIN, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NEXT_MESSAGE = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>")
# Models also write the section in the singular, which no vocabulary has as a special token.
_MEANING = {name: name for name in (_SECTION_BEGIN, _SECTION_END, CALL_BEGIN, _ARGUMENTS, _CALL_END, MESSAGE_END)} | {
    name.replace("calls", "call"): name for name in (_SECTION_BEGIN, _SECTION_END)
}
_CALL_ID = re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:{]+?):(?P<index>[0-9]+))\s*")

# Violations of Kimi's format alone: of a call, then between calls.
NO_SECTION = "call outside a section"
NO_ARGUMENTS = "call without the token that begins its arguments"
INVALID_ID = "call id is not functions.NAME:IDX"
NOT_A_CALL = "text or special token between calls"
NO_SECTION_END = "section without an end"


class ToolCallParser(AnswerParser):
    """The parser of Kimi's formats; see ``AnswerParser``."""

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
        thinks = thinking if tokenizer is None else tokenizer.has_special(THINK_END)
        ends = {} if shows_all or tokenizer is None else dict.fromkeys(_NEXT_MESSAGE, MESSAGE_END)
        super().__init__(_MEANING | ends | (THINKING if thinks else {}), tokenizer, shows_all)
        if thinking:
            self._state = self._in_reasoning
        self._in_section = False
        self._head: list[str] = []  # of the call whose id is being read: its begin token, then text

    def _meaning(self, token: str | None) -> str | None:
        return None if token == UNKNOWN and self._state == self._in_head else super()._meaning(token)

    def _is_in_call(self) -> bool:
        return self._state not in (self._in_content, self._in_reasoning, self._after_end)

    # The states: each receives the next segment, with the meaning of a special token or None.

    def _in_reasoning(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield self._add_reasoning(raw)
        elif token == THINK_END:
            self._state = self._in_content
            yield Markup(raw)
        elif token in (_SECTION_BEGIN, CALL_BEGIN, MESSAGE_END):  # they end the reasoning too
            self._state = self._in_content
            yield from self._state(raw, token)
        else:
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)

    def _in_content(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield self._add_content(raw)
        elif token == _SECTION_BEGIN:
            self._in_section, self._state = True, self._between_calls
            yield Markup(raw)
        elif token == CALL_BEGIN:
            self._open_call(raw)
        elif token == MESSAGE_END:
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
        elif token == MESSAGE_END:
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
            yield self._add_arguments(raw)
        elif token == UNKNOWN:
            yield self._stray(raw, STRAY_TOKEN)
        elif token == _CALL_END:
            yield self._end_call(raw)
        else:
            self._flaws.append(NO_END)
            yield self._end_call("")
            yield from self._state(raw, token)

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
        return self._start(raw, call_id, name)

    def _end_call(self, raw: str) -> CallEnd:
        self._state = self._outside()
        return self._end(raw)

    def _finish(self, raw: str) -> Finished:
        if self._in_section:
            self._note(NO_SECTION_END)
        return super()._finish(raw)
