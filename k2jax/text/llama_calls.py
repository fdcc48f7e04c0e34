"""Parses answers of Llama 3: one that is ``{"name": …, "parameters": {…}}``, and nothing else, is a call."""

from __future__ import annotations

from collections.abc import Iterator

from k2jax.text.answers import MESSAGE_END, NO_BEGIN, STRAY_TOKEN, AnswerParser, Event, Markup
from k2jax.text.json_calls import BAD_CALL, JsonCall, may_begin_call
from k2jax.text.special_token_scanner import UNKNOWN
from k2jax.text.tokenizer import Tokenizer

_PYTHON_TAG = "<|python_tag|>"
_NEXT_MESSAGE = "<|start_header_id|>"
_MEANING = {_PYTHON_TAG: _PYTHON_TAG} | dict.fromkeys(("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), MESSAGE_END)


class LlamaParser(AnswerParser):
    """The parser of ``llama_chat``; see ``AnswerParser``.

    A text is held back while it may be the beginning of a call. The id of a call is ``functions.NAME:INDEX``.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, shows_all: bool = False, calls_before: int = 0):
        """Starts on an answer.

        Args:
            tokenizer: the vocabulary, which token ids need.
            shows_all: as of ``ToolCallParser``.
            calls_before: number of calls before the answer.

        Raises:
            UserError: the tokenizer is not byte-level.
        """
        ends = {} if shows_all or tokenizer is None else {_NEXT_MESSAGE: MESSAGE_END}
        super().__init__(_MEANING | ends, tokenizer, shows_all)
        self._calls_before = calls_before
        self._call = JsonCall()
        self._state = self._in_beginning

    def _is_in_call(self) -> bool:
        return self._state == self._in_call

    def _in_beginning(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            arguments = self._call.feed(raw)
            if self._call.name:
                name, self._state = self._call.name, self._in_call
                yield self._start(self._call.head, f"functions.{name}:{self._calls_before}", name)
                if arguments:
                    yield self._add_arguments(arguments)
            elif not may_begin_call(self._call.head):
                yield from self._give_up()
        elif token == _PYTHON_TAG and not self._call.head:
            yield Markup(raw)
        else:
            yield from self._give_up()
            yield from self._state(raw, token)

    def _give_up(self) -> Iterator[Event]:
        """The answer is text."""
        self._state = self._in_content
        if self._call.head:
            yield self._add_content(self._call.head)

    def _in_content(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield self._add_content(raw)
        elif token == MESSAGE_END:
            yield self._finish(raw)
        else:
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)

    def _in_call(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None or (token != MESSAGE_END and self._call.tail):
            if arguments := self._call.feed(raw):
                yield self._add_arguments(arguments)
        elif token == MESSAGE_END:
            if not self._call.is_well_formed:
                self._flaws.append(BAD_CALL)
            yield self._end(self._call.tail)
            yield self._finish(raw)
        else:
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)
