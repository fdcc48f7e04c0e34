"""What a run adds to a trajectory once it is sampled: what a critic said of it, and what training left out of it.

Both stand in the trajectory's metadata as JSON, so that a stored trajectory says everything about itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from k2jax.trajectory.types import Trajectory

COMPARISONS, REWARD_PARTS, TRAINING = "comparisons", "reward_parts", "training"
"""Keys of metadata."""
_CHOICES = ("first", "second", "tie", "")


class PairVerdict(NamedTuple):
    """What a judge said of two samples of a prompt, in both orders; the first of them is the trajectory's own.

    Attributes:
        other: number of the other sample.
        choices: ``first``, ``second`` or ``tie``, or empty where the judge gave no verdict: with the own answer in the
            first place, and with the other one there.
        replies: the judge's words, in the same order.
        rubrics: names and kinds of the criteria.
        error: why there is no verdict; empty where the judge was asked.
    """

    other: int
    choices: tuple[str, str] = ("", "")
    replies: tuple[str, str] = ("", "")
    rubrics: tuple[str, ...] = ()
    error: str = ""

    @property
    def outcome(self) -> str:
        """``won``, ``lost`` or ``tied`` of the own answer, or ``unknown``: it wins where both orders name it."""
        if self.error:
            return "unknown"
        return {("first", "second"): "won", ("second", "first"): "lost"}.get(self.choices, "tied")

    def seen_by_other(self, sample: int) -> PairVerdict:
        """The same verdict as one of the other sample about this one, whose number is ``sample``."""
        return self._replace(other=sample, choices=self.choices[::-1], replies=self.replies[::-1])


class TrainingMarks(NamedTuple):
    """What an optimizer's update made of a trajectory; tokens that are not named contributed in full.

    Attributes:
        update: number of the update in its iteration.
        advantage: of the trajectory.
        clipped: the ratio pi / pi_old of tokens outside the trust region, by node and place in it; the ratio has no
            gradient there.
        zeroed: k = pi_old / mu of tokens outside IcePop's band, by node and place; they have no policy gradient.
        clipped_turns: the ratio of turns outside the trust region, by number of the turn, of losses over turns.
    """

    update: int
    advantage: float
    clipped: Mapping[int, Mapping[int, float]] = {}
    zeroed: Mapping[int, Mapping[int, float]] = {}
    clipped_turns: Mapping[int, float] = {}


def set_comparisons(trajectory: Trajectory, verdicts: Iterable[PairVerdict]) -> None:
    """Writes a critic's verdicts into the metadata; none leave no key. A pair needs them in one of its samples."""
    entries = [_comparison_entry(verdict) for verdict in verdicts]
    if entries:
        trajectory.metadata[COMPARISONS] = entries


def _comparison_entry(verdict: PairVerdict) -> dict[str, Any]:
    return {
        "other": verdict.other,
        "choices": list(verdict.choices),
        "said": list(verdict.replies),
        "rubrics": list(verdict.rubrics),
        "error": verdict.error,
    }


class RewardPart(NamedTuple):
    """A term of a reward that is a sum.

    Attributes:
        name: ``verifier``, ``judge``, ``overlong``, or that of a method.
        value: of the term.
        weight: times which it counts.
    """

    name: str
    value: float
    weight: float


def set_reward_parts(trajectory: Trajectory, parts: Iterable[RewardPart]) -> None:
    """Writes the terms of the reward that a trajectory was trained with into its metadata."""
    trajectory.metadata[REWARD_PARTS] = [list(part) for part in parts]


def reward_parts(trajectory: Trajectory) -> list[RewardPart]:
    """The terms of ``set_reward_parts``; what is none of them is left out."""
    entries = trajectory.metadata.get(REWARD_PARTS)
    return [RewardPart(*entry) for entry in entries if _is_part(entry)] if isinstance(entries, list) else []


def _is_part(entry: Any) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        return False
    name, *numbers = entry
    return isinstance(name, str) and all(type(number) in (int, float) for number in numbers)


def comparisons(trajectory: Trajectory) -> list[PairVerdict]:
    """The verdicts of ``set_comparisons``; what is none of them is left out."""
    entries = trajectory.metadata.get(COMPARISONS)
    verdicts = [_pair_verdict(entry) for entry in entries] if isinstance(entries, list) else []
    return [verdict for verdict in verdicts if verdict is not None]


def set_training(trajectory: Trajectory, marks: TrainingMarks) -> None:
    """Writes what training made of the trajectory into its metadata."""
    trajectory.metadata[TRAINING] = {
        "update": int(marks.update),
        "advantage": float(marks.advantage),
        "clipped": _to_lists(marks.clipped),
        "zeroed": _to_lists(marks.zeroed),
        "clipped_turns": [[int(turn), _rounded(ratio)] for turn, ratio in sorted(marks.clipped_turns.items())],
    }


def training(trajectory: Trajectory) -> TrainingMarks | None:
    """What ``set_training`` wrote; None where nothing was recorded, or something else stands there."""
    entry = trajectory.metadata.get(TRAINING)
    try:
        return TrainingMarks(
            int(entry["update"]),
            float(entry["advantage"]),
            _from_lists(entry["clipped"]),
            _from_lists(entry["zeroed"]),
            {int(turn): float(ratio) for turn, ratio in entry["clipped_turns"]},
        )
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


def other_metadata(trajectory: Trajectory) -> dict[str, Any]:
    """The metadata without what the functions of this module read."""
    own = {COMPARISONS} if comparisons(trajectory) else set()
    own |= {TRAINING} if training(trajectory) is not None else set()
    return {key: value for key, value in trajectory.metadata.items() if key not in own}


def _pair_verdict(entry: Any) -> PairVerdict | None:
    try:
        choices, replies = (tuple(entry[name]) for name in ("choices", "said"))
        if not len(choices) == len(replies) == 2 or not all(choice in _CHOICES for choice in choices):
            return None
        replies, rubrics = tuple(map(str, replies)), tuple(map(str, entry["rubrics"]))
        return PairVerdict(int(entry["other"]), choices, replies, rubrics, str(entry["error"]))
    except (TypeError, ValueError, KeyError, OverflowError):
        return None


def _to_lists(marks: Mapping[int, Mapping[int, float]]) -> dict[str, list[list[float]]]:
    """JSON of values by node and place: lists of (place, value) by node."""
    return {
        str(int(node)): [[int(place), _rounded(value)] for place, value in sorted(places.items())]
        for node, places in sorted(marks.items())
    }


def _from_lists(entry: Any) -> dict[int, dict[int, float]]:
    return {int(node): {int(place): float(value) for place, value in places} for node, places in entry.items()}


def _rounded(value: float) -> float:
    return float(f"{float(value):.4g}")
