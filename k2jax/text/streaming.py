"""Incremental detokenization: text as token ids arrive, and stop strings in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from k2jax.text.tokenizer import Tokenizer

# Tokens of the prompt that are decoded together with what follows: neighbours decide about spaces.
_CONTEXT_TOKENS = 8


class TextStream:
    """Turns token ids into text as they arrive; the concatenated pieces equal ``tokenizer.decode`` of all ids.

    A piece never ends inside a character: bytes are held back until they form a character or can no longer become
    one. With vocabularies that are not byte-level, runs of single-byte tokens that are not valid UTF-8 may give other
    replacement characters than ``decode`` does.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()):
        """Starts a stream.

        Args:
            tokenizer: the vocabulary.
            before: ids in front of the stream; in some vocabularies they decide about a leading space.
        """
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.is_byte_level else None
        self._ids = [int(i) for i in before[-_CONTEXT_TOKENS:]]  # the ids of the last piece, and those after it
        self._emitted = len(self._ids)  # how many of them are in the text that was returned

    def feed(self, token: int) -> str:
        """Returns the text that the next id completes, which is often empty."""
        if self._utf8 is not None:
            # ``decode`` drops special tokens and unknown ids. They are not text and do not end a character.
            visible = self._tokenizer.decode([token])
            return self._utf8.decode(self._tokenizer.token_bytes(token)) if visible else ""
        self._ids.append(token)
        text, emitted = self._decode_window()
        if len(text) <= emitted or text.endswith("\ufffd"):
            return ""
        self._ids, self._emitted = self._ids[self._emitted :], len(self._ids) - self._emitted
        return text[emitted:]

    def end(self) -> str:
        """Returns the text that was held back; no ids follow."""
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        text, emitted = self._decode_window()
        self._emitted = len(self._ids)
        return text[emitted:]

    def _decode_window(self) -> tuple[str, int]:
        """Text of the kept ids, and how many of its characters were returned before."""
        return self._tokenizer.decode(self._ids), len(self._tokenizer.decode(self._ids[: self._emitted]))


class StopStrings:
    """Cuts streamed text before the first complete stop string.

    If several stop strings are completed by the same character, the longest one counts. The result does not depend on
    how the text was split into pieces.

    Attributes:
        stopped: whether a stop string was complete; the text after it is dropped.
        matched: that stop string; None before.
    """

    def __init__(self, stops: Iterable[str] = ()):
        self.stopped = False
        self.matched: str | None = None
        self._stops = [stop for stop in stops if stop]
        self._longest_prefix = max(map(len, self._stops), default=1) - 1
        self._held = ""  # the end of the text so far, while it may begin a stop string

    def feed(self, text: str) -> str:
        """Returns the text that cannot belong to a stop string."""
        if self.stopped:
            return ""
        text = self._held + text
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped, self._held = True, ""
            _, start, self.matched = min(matches)
            return text[:start]
        lengths = range(min(self._longest_prefix, len(text)), 0, -1)
        held = next((length for length in lengths if self._is_prefix(text[-length:])), 0)
        cut = len(text) - held
        self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        """Returns the text that was held back; no text follows."""
        held, self._held = self._held, ""
        return held

    def _is_prefix(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)
