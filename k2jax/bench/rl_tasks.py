"""Prompts of one length with verdicts that differ, for the benchmark of reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator
import random
import string

from k2jax.agents.registry import datasets, verifiers
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.trajectory import Reward

DATASET = "bench_letters"
_COUNT = 4096


def register() -> None:
    """Makes the dataset and its verifier known to this process."""
    datasets.add(DATASET, "k2jax.bench.rl_tasks:RandomLetters")
    verifiers.add("share_of_ascii", "k2jax.bench.rl_tasks:share_of_ascii")


class RandomLetters:
    """Distinct prompts of random letters, so that no two share a prefix."""

    def __init__(self, length: int = 128, split: Split = "train"):
        """Args: ``length`` of a prompt [letters]; the splits have other letters."""
        self._length, self._split = length, split

    def load(self) -> Iterator[Task]:
        """The tasks, always the same."""
        rng = random.Random(self._split)
        for number in range(_COUNT):
            letters = "".join(rng.choices(string.ascii_lowercase, k=self._length))
            yield Task(f"{self._split}/{number}", "letters", ({"role": "user", "content": letters},), "share_of_ascii")


def share_of_ascii(task: Task, answer: str) -> Reward:
    """Verifier: the share of ASCII in an answer, of which every model writes some."""
    raw = answer.encode()
    return Reward(sum(byte < 128 for byte in raw) / max(1, len(raw)))
