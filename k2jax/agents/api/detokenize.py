"""Text, tool calls and log-probabilities of a choice, as its tokens arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
from typing import NamedTuple

from k2jax.agents.api.requests import GenerationRequest
from k2jax.text.answers import (
    NO_END,
    AnswerParser,
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Finished,
    Reasoning,
)
from k2jax.text.messages import EMPTY_ARGUMENTS
from k2jax.text.streaming import StopStrings, TextStream
from k2jax.text.tokenizer import Tokenizer


class GeneratedToken(NamedTuple):
    """A token as the engine generates it.

    Attributes:
        id: token id.
        logprob: its log-probability.
        top: the most likely tokens (id, log-probability), most likely first.
    """

    id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


class PromptLogprobs(NamedTuple):
    """Log-probabilities of all tokens of a prompt but the first.

    Attributes:
        logprobs: log-probability of each; empty where the prompt is not scored.
        top: the most likely tokens in the place of each (id, log-probability); empty where they are not asked for.
    """

    logprobs: Sequence[float] = ()
    top: Sequence[Sequence[tuple[int, float]]] = ()


NOT_SCORED = PromptLogprobs()


class ScoredToken(NamedTuple):
    """A token of a response.

    Attributes:
        id: token id.
        logprob: its log-probability; None if it has none, as the first token of a prompt.
        top: the most likely tokens (id, log-probability), or None where there are none, as for a prompt's first token.
        offset: where its text begins in the text of the choice [characters].
        sampled: whether the model generated it; False for a token of an echoed prompt.
    """

    id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] | None
    offset: int
    sampled: bool = True


class ToolCallDelta(NamedTuple):
    """A piece of a tool call.

    Attributes:
        index: position of the call in the choice.
        id: the call's id in its first piece, None in later ones.
        name: the function's name in the first piece, None in later ones.
        arguments: the next text of its arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclasses.dataclass(frozen=True)
class Delta:
    """The news about one choice.

    Attributes:
        choice: index of the choice.
        text: its next text.
        calls: its next pieces of tool calls.
        tokens: its next tokens; the text may lag behind them.
        finish: why it ended, once it has: ``stop``, ``length``, ``tool_calls``, or whatever other reason the caller
            gave (a server has ``cancelled`` and ``error``).
        reasoning: its next text of reasoning, which comes before ``text``.
        stop: the stop string that ended it, if one did.
    """

    choice: int
    _: dataclasses.KW_ONLY
    text: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    finish: str | None = None
    reasoning: str = ""
    stop: str | None = None


class Detokenizer:
    """Turns the tokens of one choice into deltas; the last delta has a finish reason."""

    def __init__(self, request: GenerationRequest, choice: int, tokenizer: Tokenizer):
        self._request, self._choice = request, choice
        self._prompt = request.choice_prompt(choice)
        self._stream = TextStream(tokenizer, () if request.echo else self._prompt)
        self._stops = StopStrings(request.stops)
        self._parser = _parser(request, self._prompt)
        self._stop_reason = "stop"  # tool_calls if the parser read calls
        self._echo_pending = request.echo
        self._length = 0  # characters of the text so far, with those that are held back
        self._text = ""  # of the next delta
        self._calls: list[ToolCallDelta] = []  # of the next delta
        self._reasoning = ""  # of the next delta
        self._ids: set[str] = set()  # of the calls so far, as the client receives them
        self._blank: str | None = None  # of the arguments of the call that is read, while they are blank

    def feed(
        self, tokens: Iterable[GeneratedToken], finish: str | None = None, prompt: PromptLogprobs = NOT_SCORED
    ) -> Delta:
        """Returns the delta of the next tokens.

        Args:
            tokens: tokens that were generated since the last call.
            finish: why the engine ended the sequence; None while it continues.
            prompt: log-probabilities of a prompt that is echoed; read in the first call that has tokens.
        """
        tokens, scored = list(tokens), []
        self._text, self._calls, self._reasoning = "", [], ""
        if self._echo_pending and tokens:
            self._echo_pending = False
            scored += self._echo(prompt)
        if self._request.max_tokens != 0:  # otherwise the engine drew one token only to score the prompt
            scored += [self._read(token) for token in tokens]
        if finish is not None and not self._stops.stopped:
            self._flush()
        reason = self._finish_reason(finish)
        calls, stop = tuple(self._calls), self._stops.matched
        return Delta(
            self._choice,
            text=self._text,
            calls=calls,
            tokens=tuple(scored),
            finish=reason,
            reasoning=self._reasoning,
            stop=stop,
        )

    def _finish_reason(self, engine_reason: str | None) -> str | None:
        if self._stops.stopped:
            return "stop"
        if engine_reason != "stop":
            return engine_reason
        return "length" if self._request.max_tokens == 0 else self._stop_reason

    def _echo(self, prompt: PromptLogprobs) -> list[ScoredToken]:
        """Adds the prompt to the text; stop strings in it do not count."""
        unknown = [None] * len(self._prompt)
        logprobs = [None, *prompt.logprobs] if len(prompt.logprobs) else unknown
        tops = [None, *prompt.top] if prompt.top else unknown
        scored = []
        for token, logprob, top in zip(self._prompt, logprobs, tops, strict=True):
            scored.append(ScoredToken(token, logprob, top, len(self._text), sampled=False))
            self._text += self._stream.feed(token)
        self._length = len(self._text)
        return scored

    def _read(self, token: GeneratedToken) -> ScoredToken:
        scored = ScoredToken(token.id, token.logprob, token.top, self._length)
        if token.id not in self._request.sampling.stop_tokens:
            if self._parser is None:
                self._add_text(self._stream.feed(token.id))
            else:
                self._add_events(self._parser.feed_ids([token.id]))
        return scored

    def _flush(self) -> None:
        """Adds what was held back."""
        if self._parser is None:
            self._add_text(self._stream.end())
        else:
            self._add_events(self._parser.end())
        self._text += self._stops.end()

    def _add_text(self, text: str) -> None:
        self._length += len(text)
        self._text += self._stops.feed(text)

    def _add_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._stops.stopped:
                break
            match event:
                case Content(raw):
                    self._add_text(raw)
                case Reasoning(raw):
                    self._reasoning += raw
                case CallStart(_, index, call_id, name):
                    self._text += self._stops.end()  # no stop string reaches over the beginning of a call
                    self._calls.append(ToolCallDelta(index, self._unique_id(index, call_id, name), name))
                    self._blank = ""
                case CallArguments(raw, index):
                    self._add_arguments(index, raw)
                case CallEnd(_, index, _, problems) if self._blank is not None and NO_END not in problems:
                    self._calls.append(ToolCallDelta(index, arguments=EMPTY_ARGUMENTS))
                case Finished(_, reason):
                    self._stop_reason = reason

    def _unique_id(self, index: int, call_id: str, name: str) -> str:
        """The id of a call; another one where the model wrote none, or that of an earlier call of the answer."""
        while not call_id or call_id in self._ids:
            call_id, index = f"functions.{name}:{index}", index + 1
        self._ids.add(call_id)
        return call_id

    def _add_arguments(self, index: int, raw: str) -> None:
        """Adds arguments of a call once they are not blank: blank ones are ``{}`` where the call ends."""
        if self._blank is not None:
            raw = self._blank + raw
            self._blank = None if raw.strip() else raw
        if self._blank is None:
            self._calls.append(ToolCallDelta(index, arguments=raw))


def _parser(request: GenerationRequest, prompt: Sequence[int]) -> AnswerParser | None:
    """What reads an answer; None where all of it is text."""
    if request.chat is None:
        return None
    return request.chat.parser(request.thinking, calls_before=request.chat.count_calls(prompt))
