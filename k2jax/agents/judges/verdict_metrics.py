"""How good a judge is, and how biased: accuracy where the truth is known, ties, and the pull of place and length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from k2jax.agents.judges.judge_formats import OTHER, Choice


class Judgement(NamedTuple):
    """A judge's answer to one comparison.

    Attributes:
        choice: its verdict; None where it gave none that can be read.
        first_length: of the answer that it saw first, in characters.
        second_length: of the other one.
        truth: the right verdict, where it is known.
    """

    choice: Choice | None
    first_length: int
    second_length: int
    truth: Choice | None = None


class JudgedPair(NamedTuple):
    """The same two answers in both orders."""

    forth: Judgement
    back: Judgement


def verdict_metrics(pairs: Sequence[JudgedPair]) -> dict[str, float]:
    """Shares of a judge's verdicts; a share of nothing is left out.

    Returns:
        ``pairs``, their number, and of single verdicts ``unparsable``; ``accuracy``, of those whose truth is known,
        one that cannot be read being wrong; ``first``, for the answer in the first place, of those that choose one; and
        ``longer``, for the longer answer, of those that choose between different lengths. A judge without a bias of
        place has ``first`` 0.5. Of pairs: ``both_right``, right in both orders; ``ties``, with no winner in both.
    """
    single = [judgement for pair in pairs for judgement in pair]
    known = [each for each in single if each.truth is not None]
    chosen = [each for each in single if each.choice in ("first", "second")]
    uneven = [each for each in chosen if each.first_length != each.second_length]
    record = {"pairs": float(len(pairs))}
    shares = {
        "accuracy": [each.choice == each.truth for each in known],
        "both_right": [all(each.choice == each.truth for each in pair) for pair in pairs if pair.forth.truth],
        "ties": [_is_tie(pair) for pair in pairs],
        "unparsable": [each.choice is None for each in single],
        "first": [each.choice == "first" for each in chosen],
        "longer": [(each.choice == "first") == (each.first_length > each.second_length) for each in uneven],
    }
    return record | {name: sum(marks) / len(marks) for name, marks in shares.items() if marks}


def _is_tie(pair: JudgedPair) -> bool:
    forth, back = pair.forth.choice, pair.back.choice
    return forth in (None, "tie") or back != OTHER[forth]
