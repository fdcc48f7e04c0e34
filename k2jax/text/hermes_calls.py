"""Parses answers of Qwen's and Hermes' models: ``<think>`` blocks, and calls as JSON between ``<tool_call>`` tags."""

from __future__ import annotations

from collections.abc import Iterator

from k2jax.text.answers import (
    MESSAGE_END,
    NO_BEGIN,
    NO_END,
    NO_NAME,
    STRAY_TOKEN,
    THINKING,
    AnswerParser,
    Event,
    Markup,
)
from k2jax.text.json_calls import BAD_CALL, JsonCall
from k2jax.text.messages import THINK_BEGIN, THINK_END
from k2jax.text.special_token_scanner import UNKNOWN
from k2jax.text.tokenizer import Tokenizer

HERMES_CALL, HERMES_CALL_END = "<tool_call>", "</tool_call>"
NO_CALL_ARGUMENTS = "call without arguments"
_MEANING = {HERMES_CALL: HERMES_CALL, HERMES_CALL_END: HERMES_CALL_END, "<|im_end|>": MESSAGE_END}
_NEXT_MESSAGE = "<|im_start|>"
_WHITE = " \t\r\n"


class HermesParser(AnswerParser):
    """The parser of ``hermes_chat``; see ``AnswerParser``.

    Line breaks that the format writes are markup: within the tags of reasoning, behind them, and the one before a call.
    Calls have ids ``functions.NAME:INDEX``, counted over the conversation, since the format writes none.
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
        thinks = tokenizer is None or tokenizer.has_special(THINK_END)
        ends = {} if shows_all or tokenizer is None else {_NEXT_MESSAGE: MESSAGE_END}
        super().__init__(_MEANING | ends | (THINKING if thinks else {}), tokenizer, shows_all)
        self._calls_before = calls_before
        self._skipped = ""  # characters that are markup at the beginning of the next text
        self._held = ""  # line breaks at the end of the text so far, which may be markup
        self._opening = ""  # of the call that is read, until its name is known
        self._call = JsonCall()

    def _is_in_call(self) -> bool:
        return self._state == self._in_call

    def _meaning(self, token: str | None) -> str | None:
        is_text = token == UNKNOWN and self._is_in_call() and (not self._call.name or self._call.tail)
        return None if is_text else super()._meaning(token)

    # The states: each receives the next segment, with the meaning of a special token or None.

    def _in_reasoning(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield from self._skip(raw)
            text = self._held + self._rest
            shown = text.rstrip("\n")
            self._held = text[len(shown) :]
            if shown:
                yield self._add_reasoning(shown)
        elif token == THINK_END:
            held, self._held = self._held, ""
            self._skipped, self._state = "\n", self._in_content
            yield Markup(held + raw)
        elif token in (HERMES_CALL, MESSAGE_END):  # they end the reasoning too
            if self._held:
                yield Markup(self._held)
            self._held, self._state = "", self._in_content
            yield from self._state(raw, token)
        else:
            if self._held:
                yield self._add_reasoning(self._held)
                self._held = ""
            yield self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)

    def _in_content(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield from self._skip(raw)
            text = self._held + self._rest
            self._held = "\n" if text.endswith("\n") else ""
            if shown := text[: len(text) - len(self._held)]:
                yield self._add_content(shown)
        elif token == HERMES_CALL:
            self._opening, self._held, self._skipped = self._held + raw, "", ""
            self._call, self._state = JsonCall(), self._in_call
        elif token == THINK_BEGIN and not (self._content or self._starts or self._reasoning):
            held, self._held = self._held, ""
            self._skipped, self._state = "\n", self._in_reasoning
            yield Markup(held + raw)
        else:
            if self._held:
                yield self._add_content(self._held)
                self._held = ""
            yield (
                self._finish(raw)
                if token == MESSAGE_END
                else self._stray(raw, STRAY_TOKEN if token == UNKNOWN else NO_BEGIN)
            )

    def _in_call(self, raw: str, token: str | None) -> Iterator[Event]:
        if token is None:
            yield from self._call_events(self._call.feed(raw))
        elif token == UNKNOWN:
            yield self._stray(raw, STRAY_TOKEN)
        elif token == HERMES_CALL_END:
            yield from self._close_call(raw)
        else:
            self._flaws.append(NO_END)
            yield from self._close_call("")
            yield from self._state(raw, token)

    # What states do.

    def _skip(self, raw: str) -> Iterator[Event]:
        """Takes markup off the beginning of a text; the rest is ``_rest``."""
        self._rest = raw.lstrip(self._skipped) if self._skipped else raw
        if self._rest:
            self._skipped = ""
        if skipped := raw[: len(raw) - len(self._rest)]:
            yield Markup(skipped)

    def _call_events(self, arguments: str) -> Iterator[Event]:
        """The beginning of a call once its name is known, and a piece of its arguments."""
        if self._call.name and len(self._starts) == len(self._ends):
            name, index = self._call.name, self._calls_before + len(self._starts)
            yield self._start(self._opening + self._call.head, f"functions.{name}:{index}", name)
        if arguments:
            yield self._add_arguments(arguments)

    def _close_call(self, raw: str) -> Iterator[Event]:
        self._skipped, self._state = _WHITE, self._in_content
        yield from self._call_events(self._call.end())
        if not self._call.name:  # this is no call
            self._flaws = []
            yield self._stray(self._opening + self._call.head + raw, NO_NAME)
            return
        if not self._arguments:
            self._flaws.append(NO_CALL_ARGUMENTS)
        elif not self._call.is_well_formed:
            self._flaws.append(BAD_CALL)
        yield self._end(self._call.tail + raw)
