"""Tasks of the package reasoning-gym: a hundred generators of puzzles with exact verifiers, by name.

They are generated in a process of their own with a fixed hash seed, since some generators depend on the order of sets,
and tasks must be the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import subprocess
import sys

from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.agents.verifier_pool.needed_packages import NeededPackages
from k2jax.errors import UserError
from k2jax.files.child_environment import child_environment

PACKAGE = NeededPackages("reasoning_gym", ("reasoning_gym.factory",), "pip install 'k2jax[env]'")
GENERATOR = "k2jax.tasks.reasoning_gym.generate"
ANSWER_FORMAT = "\n\nGive your final answer between <answer> and </answer>."
DEFAULT_LEVEL = -1


class ReasoningGymTasks:
    """Puzzles of one or more generators in turn; the domain is the generator's category, such as ``arithmetic``."""

    def __init__(
        self,
        generators: tuple[str, ...] = ("all",),
        count: int = 1000,
        seed: int = 0,
        level: int = DEFAULT_LEVEL,
        split: Split = "train",
    ):
        """A set of puzzles.

        Args:
            generators: names in reasoning-gym; ``all`` is every generator, or with a level every one that has levels.
            count: number of tasks.
            seed: of the generators.
            level: of the package's difficulty curricula, from 0; -1 is each generator's default configuration.
            split: ``train``, or ``test`` for the prompts that are held out.

        Raises:
            UserError: ``count`` or ``level`` is out of range.
        """
        if count < 1 or level < DEFAULT_LEVEL:
            raise UserError(f"reasoning_gym: count {count} must be positive and level {level} at least 0 (-1 for none)")
        self._request = {"generators": generators, "count": count, "seed": seed, "level": level, "split": split}

    def load(self) -> Iterator[Task]:
        """The tasks.

        Raises:
            UserError: a generator or level is unknown, the generators have too few puzzles, or the package is missing.
        """
        done = subprocess.run(
            [sys.executable, "-m", GENERATOR],
            input=json.dumps(self._request),
            capture_output=True,
            encoding="utf-8",
            env=child_environment()
            | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        )
        if done.returncode == 2:
            raise UserError(done.stderr.strip().splitlines()[-1])
        if done.returncode:
            raise RuntimeError(f"the generator of reasoning-gym tasks failed:\n{done.stderr}")
        return map(Task.from_json, done.stdout.splitlines())
