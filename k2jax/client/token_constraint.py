"""What an answer has to obey, as data that travels with a request."""

from __future__ import annotations

from typing import NamedTuple


class TokenConstraint(NamedTuple):
    """A grammar that the tokens of a completion obey: a mask over the vocabulary leaves those that may come next.

    What ends the completion is no part of the grammar: stop tokens may come where it is complete. A completion without
    stop tokens ends there itself. One that reaches ``max_tokens`` before is the beginning of a text that obeys it.

    Attributes:
        grammar: in llguidance's dialect of Lark, see ``k2jax.text.constrained``.
        after: id of the token behind which the grammar applies; None for the beginning of the completion.
        banned: ids that are not drawn before it.
    """

    grammar: str
    after: int | None = None
    banned: tuple[int, ...] = ()
