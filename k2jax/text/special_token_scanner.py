"""Splits a model's answer into text and special tokens as it arrives, as text or as token ids."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
import re
from typing import NamedTuple

from k2jax.text.tokenizer import Tokenizer

UNKNOWN = "special token"
"""Meaning of a special token that has none."""


class Segment(NamedTuple):
    """A part of the input.

    Attributes:
        text: the input's text; for a special token, its name.
        meaning: meaning of the special token, ``UNKNOWN`` for one without a meaning; None for text.
    """

    text: str
    meaning: str | None


class SpecialTokenScanner:
    """Turns text or token ids into segments; their concatenated texts are the input.

    A name that the tokenizer has as a special token is recognized only as that token id, so that an answer can quote
    the name. Other names, and all names if there is no tokenizer, are recognized by their spelling.
    """

    def __init__(self, meanings: Mapping[str, str], tokenizer: Tokenizer | None = None):
        """Starts on an answer; ``meanings`` maps the name of each special token to its meaning.

        Raises:
            UserError: the tokenizer is not byte-level.
        """
        if tokenizer is not None:
            tokenizer.token_bytes(tokenizer.eos)  # raises
        self._meanings = meanings
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        spelled = [name for name in meanings if tokenizer is None or not tokenizer.has_special(name)]
        self._prefixes = {name[:length] for name in spelled for length in range(1, len(name))}
        self._longest_prefix = max(map(len, spelled), default=1) - 1
        self._spelled = re.compile("|".join(map(re.escape, spelled)) or r"(?!)")
        self._held = ""  # the end of the text so far, while it may begin a spelled name

    def scan_text(self, text: str) -> Iterator[Segment]:
        """Yields the segments of the next piece of text."""
        text, position = self._held + text, 0
        for match in self._spelled.finditer(text):
            yield from _plain(text[position : match.start()])
            yield Segment(match[0], self._meanings[match[0]])
            position = match.end()
        rest = text[position:]
        lengths = range(min(self._longest_prefix, len(rest)), 0, -1)
        cut = len(rest) - next((length for length in lengths if rest[-length:] in self._prefixes), 0)
        self._held = rest[cut:]
        yield from _plain(rest[:cut])

    def scan_token(self, token: int) -> Iterator[Segment]:
        """Yields the segments of the next token id; an id outside the vocabulary has none.

        Raises:
            ValueError: there is no tokenizer.
        """
        if self._tokenizer is None:
            raise ValueError("token ids need a tokenizer")
        name = self._tokenizer.special_name(token)
        if name is None:
            yield from self.scan_text(self._utf8.decode(self._tokenizer.token_bytes(token)))
        else:
            yield from self.flush()
            yield Segment(name, self._meanings.get(name, UNKNOWN))

    def flush(self) -> Iterator[Segment]:
        """Yields what was held back.

        Neither a character nor a spelled name can continue after a special token or the end of the input.
        """
        yield from self.scan_text(self._utf8.decode(b"", final=True))
        held, self._held = self._held, ""
        yield from _plain(held)


def _plain(text: str) -> Iterator[Segment]:
    if text:
        yield Segment(text, None)
