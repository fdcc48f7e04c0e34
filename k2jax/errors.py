"""Exceptions of all packages: mistakes that the user can fix, and failures of machines rather than of models."""

from __future__ import annotations

from collections.abc import Sequence
import difflib
from typing import Any

_LONGEST_WORD = 200  # that is compared with names, which takes the product of two lengths: a model may write any


class UserError(Exception):
    """A user's mistake, worded in one line that says what is wrong and how to fix it.

    Commands print it as one line and exit with code 2. Raise it for missing files, bad config values, shapes that do
    not divide, checkpoints of another model and corrupt inputs. Anything else that escapes is a bug and keeps its
    traceback.
    """


class InfrastructureError(Exception):
    """A sandbox, a verifier's process, a server or a machine failed; the model's answer is not to blame.

    What raises it is tried again, and a sample for which it lasts is masked: it is never a reward of 0.
    """


def abbreviate(value: Any, length: int = 80) -> str:
    """Returns a value for an error message: in ASCII, on one line, of at most ``length`` characters."""
    text = ascii(_beginning(value, [length]))
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _beginning(value: Any, room: list[int]) -> Any:
    """As much of a value as ``room`` characters show, so that a value of many megabytes is not written as a whole."""
    if isinstance(value, str | bytes | bytearray):
        shown = value[: max(0, room[0]) + 1]
        room[0] -= len(shown)
        return shown
    if type(value) not in (list, tuple, dict):
        room[0] -= 1
        return value
    shown: dict = {}
    for index, item in enumerate(value):
        if room[0] < 0:
            break
        room[0] -= 1
        key = _beginning(item, room) if isinstance(value, dict) else index
        # A key that is cut where the room ends may begin as an earlier one does, which stays.
        shown.setdefault(key, _beginning(value[item] if isinstance(value, dict) else item, room))
    return shown if isinstance(value, dict) else type(value)(shown.values())


def nearest(word: str, names: Sequence[str], ending: str = "") -> str:
    """The end of a message about an unknown word: ``"; did you mean 'x'?"``, or a short list of the known ones.

    Args:
        word: the unknown one.
        names: those that it may be meant to be.
        ending: what all of them end with in the message, and which makes no two of them alike.
    """
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5) if len(word) <= _LONGEST_WORD else []
    if close:
        return f"; did you mean {close[0] + ending!r}?"
    return f"; there are {', '.join(each + ending for each in sorted(names))}" if len(names) <= 16 else ""
