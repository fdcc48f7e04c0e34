"""What goes wrong with calls of a world's tools, at rates that a config names (Kimi K2, section 3.1.1).

Every call draws its fate from the seed of the episode and its number, so that a replay has the same failures. None of
them needs another task: the agent that notices one can still reach its goal.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal, get_args

from k2jax.errors import UserError, nearest

Fate = Literal["success", "unavailable", "permission", "timeout", "partial", "stale", "edge"]
MESSAGES: dict[str, str] = {
    "unavailable": "the service is not available now; nothing was done, and the call may be repeated",
    "permission": "the session has expired; nothing was done, and it is renewed: repeat the call",
    "timeout": "no answer within the time limit; the call may have been carried out or not",
}
"""What an agent sees in the place of an answer."""
NOTHING_DONE = ("unavailable", "permission")
"""Fates of calls that were not carried out, and say so."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureRates:
    """Share of calls with each fate; the rest succeed.

    Raises:
        UserError: a rate is negative, or together they are above 1.
    """

    unavailable: float = 0.0  #: nothing is done
    permission: float = 0.0  #: nothing is done, for want of a session
    timeout: float = 0.0  #: no answer; half of the calls were carried out
    partial: float = 0.0  #: carried out, and the answer is a part of what was asked
    stale: float = 0.0  #: carried out, and the answer is of the state before the last change
    edge: float = 0.0  #: carried out, and the answer has an unusual form

    def __post_init__(self):
        rates = dataclasses.astuple(self)
        if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates) or sum(rates) > 1:
            raise UserError(f"rates of failures are shares whose sum is at most 1, not {rates}")

    @classmethod
    def from_json(cls, values: Any) -> FailureRates:
        """Reads rates by name.

        Raises:
            UserError: they are none.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values if isinstance(values, dict) else ["no object"]:
            if name not in known:
                raise UserError(f"there is no rate of failures {name!r}{nearest(str(name), known)}")
        return cls(**values)

    def draw(self, seed: int, number: int) -> Fate:
        """The fate of the call ``number`` of an episode."""
        left = share(seed, number, "fate")
        for name in get_args(Fate)[1:]:
            left -= getattr(self, name)
            if left < 0:
                return name
        return "success"


def share(seed: int, number: int, what: str) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    digest = hashlib.sha256(f"{seed} {number} {what}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64
