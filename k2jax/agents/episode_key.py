"""Which episode of a run an episode is, and the seeds of its random numbers.

A key names an episode in logs and decides, with the run's seed, everything that is random in it. Every seed is a hash
of the run's seed, the key and a number that stands for what is drawn: turns count from 0, and the rest are below.
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import hashlib
import struct

from k2jax.trajectory import Trajectory
from k2jax.trajectory.types import Purpose

_ENVIRONMENT = -1  # what is drawn, in the place of a turn
_PAIRS = -2
_FIRST_SPAWNED = -2  # the sub-episodes that follow are below
_BUDGETS = -(1 << 31)


@dataclasses.dataclass(frozen=True)
class EpisodeKey:
    """Names an episode of a run.

    Attributes:
        purpose: ``train``: its groups become updates; ``eval``: an answer to a held-out task after an iteration;
            ``budget``: one from which the length budget of its prompt is taken.
        step: iteration in which it began; of an evaluation the iteration after which it is done.
        prompt: place of its prompt among those of the step.
        sample: number of the response to the prompt.
    """

    purpose: Purpose
    step: int
    prompt: int
    sample: int

    @classmethod
    def of(cls, trajectory: Trajectory) -> EpisodeKey:
        """The key of a trajectory's episode."""
        return cls(trajectory.purpose, *trajectory.key)

    @property
    def place(self) -> tuple[int, int, int]:
        """(step, prompt, sample)."""
        return self.step, self.prompt, self.sample


def turn_seed(seed: int, key: EpisodeKey, turn: int) -> int:
    """Seed in [0, 2^32) of one call of the model, ``turn`` from 0, in a run of this seed."""
    return _hash(seed, key, turn)


def environment_seed(seed: int, key: EpisodeKey) -> int:
    """Seed of an episode's environment."""
    return _hash(seed, key, _ENVIRONMENT)


def spawned_seed(seed: int, key: EpisodeKey, path: Iterable[int]) -> int:
    """Seed of a sub-episode, which it has in the place of the run's.

    Args:
        seed: of the run.
        key: of the run's episode, which is the sub-episode's too.
        path: numbers from 0 of the sub-episodes from that episode down to this one.
    """
    for number in path:
        seed = _hash(seed, key, _FIRST_SPAWNED - number)
    return seed


def pairs_seed(seed: int, step: int) -> int:
    """Seed of the choice of pairs on which a critic is trained in an iteration."""
    return _hash(seed, EpisodeKey("train", step, 0, 0), _PAIRS)


def _hash(seed: int, key: EpisodeKey, drawn: int) -> int:
    step = {"train": key.step, "eval": -key.step, "budget": _BUDGETS}[key.purpose]
    digest = hashlib.sha256(struct.pack("<5q", seed, step, key.prompt, key.sample, drawn)).digest()
    return int.from_bytes(digest[:4], "little")
