"""Where the answer of a request stands in the grammar that it has to obey."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k2jax.client import Sampling, TokenConstraint
from k2jax.errors import UserError
from k2jax.text.constrained import Grammars, Matcher


class ConstraintState:
    """Follows an answer on the host, between the steps that draw its tokens.

    Args:
        constraint: what the answer has to obey.
        matcher: of its grammar, at the beginning.
        stop_tokens: which end the answer where its grammar is complete.

    Attributes:
        applies: whether the grammar does, so that a token decides what the next one may be.
    """

    def __init__(self, constraint: TokenConstraint, matcher: Matcher, stop_tokens: Sequence[int]):
        self._constraint, self._matcher, self._stops = constraint, matcher, frozenset(stop_tokens)
        self.applies = constraint.after is None
        self._is_at_end = False

    @property
    def excludes(self) -> bool:
        """Whether there are tokens that may not come next."""
        return self.applies or bool(self._constraint.banned)

    @property
    def failure(self) -> str:
        """Why the answer cannot go on, in one line; empty while it can."""
        return self._matcher.failure

    @property
    def is_over(self) -> bool:
        """Whether no token can follow: the answer cannot go on, or its grammar is complete and nothing stops it."""
        return bool(self.failure) or self._is_at_end

    def fill(self, words: np.ndarray) -> None:
        """Writes which tokens may come next into the row of a mask, see ``sampler.sample``."""
        if not self.applies:
            for token in self._constraint.banned:
                words[token // 32] &= ~np.uint32(1 << token % 32)
            return
        if self._matcher.fill(words):
            for token in self._stops:
                words[token // 32] |= np.uint32(1 << token % 32)
        self._is_at_end = not words.any()
        if self.is_over:
            words[:] = ~np.uint32(0)  # whatever is drawn is dropped

    def take(self, token: int) -> None:
        """Goes on behind a token of the answer; one that stops it is not part of the grammar."""
        if token in self._stops:
            return
        if self.applies:
            self._matcher.take(token)
        else:
            self.applies = token == self._constraint.after


def start_constraint(sampling: Sampling, grammars: Grammars | None, vocab: int) -> ConstraintState | None:
    """The state of a request that has generated nothing; None where its answer is any text.

    Args:
        sampling: of the request.
        grammars: of the engine's vocabulary, if it knows one.
        vocab: rows of the model's embedding.

    Raises:
        UserError: the engine knows no vocabulary, the grammar cannot be compiled, or an id is outside the vocabulary.
    """
    if sampling.constraint is None:
        return None
    if grammars is None:
        raise UserError("a constraint needs the engine's vocabulary: set engine.grammars = Grammars(tokenizer, vocab)")
    constraint = TokenConstraint(*sampling.constraint)  # which JSON makes a list of
    if any(not 0 <= token < vocab for token in (*constraint.banned, *sampling.stop_tokens)):
        raise UserError(f"a banned id or a stop token of a constrained request is outside the vocabulary of {vocab:,}")
    return ConstraintState(constraint, grammars.matcher(constraint.grammar), sampling.stop_tokens)
