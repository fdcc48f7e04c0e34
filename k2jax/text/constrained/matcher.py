"""Compiles grammars for a vocabulary, and says token by token what may follow; it needs llguidance."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
import functools
import re
import threading
from typing import Any

import numpy as np

from k2jax.errors import UserError, abbreviate
from k2jax.text.tokenizer import Tokenizer

INSTALL = 'llguidance is not installed: pip install -e ".[constrained]"'
MOST_COMPILED = 32
"""Grammars that stay compiled; those that were used last."""
LONGEST = 1 << 20
"""Characters of a grammar."""
_STACK_BYTES = 1 << 28
"""Of the thread that compiles: references of a schema are followed by recursion. Only what is used takes memory."""
_LIMITS = {
    # What a compilation takes at most, about 20 ms for a million, and a step, about 14 ms; a state has about 2 kB.
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 6000,
    "max_lexer_states": 10_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")
_CONTEXT = re.compile(r"\n +\d+ \| ")


class Grammars:
    """Grammars over one vocabulary. Its methods may be called from any thread, and compilation lets others run.

    Args:
        tokenizer: of the vocabulary, or what loads it when the first grammar is compiled.
        vocab: rows of the model's embedding; ids that the tokenizer does not have are never allowed.
    """

    def __init__(self, tokenizer: Tokenizer | Callable[[], Tokenizer], vocab: int):
        self._load, self._words = tokenizer, -(-vocab // 32)
        self._lock = threading.Lock()  # of what is compiled: a compilation keeps nobody from it
        self._compiling = threading.Lock()  # one at a time
        self._vocabulary: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    @property
    def words(self) -> int:
        """Numbers of 32 bits in a mask of the vocabulary."""
        return self._words

    def matcher(self, grammar: str) -> Matcher:
        """Follows a grammar from its beginning.

        Args:
            grammar: in llguidance's dialect of Lark.

        Raises:
            UserError: it is wrong, not supported or too complex, llguidance is missing, or the tokenizer is not
                byte-level.
        """
        if len(grammar) > LONGEST:
            raise UserError(f"the grammar has {len(grammar):,} characters; at most {LONGEST:,} are compiled")
        compiled = self._known(grammar)
        if compiled is None:
            with self._compiling:
                compiled = self._known(grammar) or _on_deep_stack(lambda: self._compile(grammar))
            with self._lock:
                self._compiled[grammar] = compiled
                if len(self._compiled) > MOST_COMPILED:
                    self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy(), self._tokenizer.eos)

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._load if isinstance(self._load, Tokenizer) else self._load()

    def _known(self, grammar: str) -> Any:
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
            return self._compiled.get(grammar)

    def _compile(self, grammar: str) -> Any:
        try:
            import llguidance
        except ModuleNotFoundError:
            raise UserError(INSTALL) from None
        if self._vocabulary is None:
            self._vocabulary = llguidance.LLTokenizer(_Vocabulary(self._tokenizer))
        limits = llguidance.LLParserLimits(**_LIMITS)
        compiled = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if not compiled.is_error():
            compiled.compute_bitmask()  # where some grammars turn out to match nothing, or to be too complex
        if compiled.is_error():
            raise UserError(f"the grammar cannot be compiled: {_one_line(compiled.get_error())}")
        return compiled


class Matcher:
    """Where a text stands in its grammar.

    Attributes:
        failure: why it cannot go on, in one line; empty while it can.
    """

    def __init__(self, matcher: Any, end: int):
        self._matcher, self._end, self.failure = matcher, end, ""

    def fill(self, words: np.ndarray) -> bool:
        """Writes which tokens may follow, one bit for each.

        Args:
            words: uint32 ``[W]``, the first token in the lowest bit.

        Returns:
            Whether the text may end here, for which no bit is set.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), "<u4")
        words[:] = 0
        words[: len(mask)] = mask[: len(words)]
        bit = np.uint32(1 << self._end % 32)
        may_end = bool(words[self._end // 32] & bit)
        words[self._end // 32] &= ~bit
        if self._matcher.is_error() or not (may_end or words.any()):
            self._fail()
        return may_end

    def take(self, token: int) -> None:
        """Goes on behind a token."""
        if not self.failure and not self._matcher.consume_token(token):
            self._fail()

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow, and the text obeys its grammar."""
        return not self.failure and self._matcher.is_stopped() and self._matcher.is_accepting()

    def _fail(self) -> None:
        reason = _one_line(self._matcher.get_error()) or "no token of the vocabulary can follow"
        self.failure = f"the answer cannot go on in its grammar: {reason}"


class _Vocabulary:
    """A tokenizer as llguidance reads it. Special tokens have bytes that no text has."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer):
        ids = range(tokenizer.vocab_size)
        self.eos_token_id = tokenizer.eos
        self.special_token_ids = [i for i in ids if tokenizer.special_name(i) is not None]
        special = set(self.special_token_ids)
        self.tokens = [b"\xff<%d>" % i if i in special else tokenizer.token_bytes(i) for i in ids]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode() if isinstance(text, bytes) else text)


def _on_deep_stack(function: Any) -> Any:
    """What a function returns or raises in a thread whose stack holds deep recursion."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        except Exception as error:
            outcome.append((None, error))

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="grammar")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    [(result, error)] = outcome
    if error is not None:
        raise error
    return result


def _one_line(text: str) -> str:
    """The library's message without where in the grammar it is and what stands there."""
    text = _PLACE.sub("", _CONTEXT.split(text)[0]).replace("<non-verbose/>", "")
    return abbreviate(" ".join(text.split()), 200)[1:-1]
