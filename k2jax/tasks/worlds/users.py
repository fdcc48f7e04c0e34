"""Users who know what they want, say it bit by bit, may change their minds, and end the dialogue.

A user is data: nothing of a task's rubric or goal is in it, so that no user can give it away. ``ScriptedUser`` needs no
model, and says the same at every replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

from k2jax.errors import UserError

MOST_REPLIES = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserSpec:
    """A simulated user.

    Attributes:
        persona: who it is and how it writes, for a model that plays it.
        opening: its first message.
        facts: ``{"about": [word, ...], "text": ...}``, what it knows and tells when asked about one of the words.
        changes: ``{"after": replies, "text": ...}``, said once so many replies were given, whatever was asked.
        closing: its last message.
        patience: replies at most, after which it leaves.
    """

    opening: str
    persona: str = ""
    facts: tuple[Mapping[str, Any], ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()
    closing: str = "Thank you, that is all."
    patience: int = 8

    @classmethod
    def from_json(cls, values: Any) -> UserSpec:
        """Reads a user.

        Raises:
            UserError: it is none.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            if not isinstance(values, Mapping) or not set(values) <= known:
                raise ValueError("its keys")
            spec = cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
            texts = [spec.opening, spec.persona, spec.closing, *(each["text"] for each in (*spec.facts, *spec.changes))]
            words = [word for fact in spec.facts for word in fact["about"]]
            numbers = [spec.patience, *(change["after"] for change in spec.changes)]
            if not all(isinstance(text, str) for text in (*texts, *words)):
                raise ValueError("its texts")
            if not all(type(number) is int and 0 <= number <= MOST_REPLIES for number in numbers):
                raise ValueError(f"its numbers, which are at most {MOST_REPLIES}")
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"a simulated user cannot be read: {error}") from None
        return spec

    def to_json(self) -> dict[str, Any]:
        """The JSON value; ``from_json`` is the inverse."""
        return dataclasses.asdict(self)


class ScriptedUser:
    """Follows its script in one dialogue.

    Args:
        spec: the user.

    Attributes:
        told: the facts and changes that it has said.
    """

    def __init__(self, spec: UserSpec):
        self._spec, self.told = spec, []
        self._facts, self._changes = list(spec.facts), list(spec.changes)
        self._replies, self._ended = 0, False

    def reply(self, text: str) -> str | None:
        """What the user says to an agent's message; None once it has left.

        It tells all facts that the message asks about; else, of a question, the next fact; else a change of its mind
        whose time has come; else the next fact that it has not told, until it says goodbye.
        """
        if self._ended or self._replies >= self._spec.patience:
            return None
        self._replies += 1
        said = self._asked(text) or self._changed() or self._facts[:1]
        if not said:
            self._ended = True
            return self._spec.closing
        self._facts = [fact for fact in self._facts if not any(fact is one for one in said)]
        self.told += [one["text"] for one in said]
        return " ".join(one["text"] for one in said)

    def _asked(self, text: str) -> Sequence[Mapping[str, Any]]:
        if "?" not in text:
            return []
        words = set(re.findall(r"\w+", text.lower()))
        asked = [fact for fact in self._facts if any(word.lower() in words for word in fact["about"])]
        return asked or self._facts[:1]

    def _changed(self) -> Sequence[Mapping[str, Any]]:
        due = [change for change in self._changes if change["after"] < self._replies][:1]
        self._changes = [change for change in self._changes if not any(change is one for one in due)]
        return due
