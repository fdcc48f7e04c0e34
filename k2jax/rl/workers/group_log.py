"""Complete groups on disk, until the checkpoints of a run have counted them.

A group is written when its last response has its verdict, before the trainer or anybody else learns of it: no death of
a process loses it, and a run that goes on from a checkpoint uses it instead of sampling it again. A group whose writing
was cut off, or that was not complete, is dropped as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
import json
from pathlib import Path

from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.trajectory import Trajectory, TrajectoryStore
from k2jax.trajectory.types import Purpose

FOLDER = "groups"
"""Name of the log in a workdir."""
_IDENTITY = "identity.json"
Place = tuple[int, int]
"""(step, prompt) of a group's key."""


class GroupLog:
    """Complete groups by the step and place of their prompts.

    Args:
        workdir: of the run.
        samples: responses of a group.
        identity: fingerprints of what groups depend on, by name; groups of another identity are none of this run's.
    """

    def __init__(self, workdir: Path, samples: int, identity: Mapping[str, str]):
        self._store, self._samples = TrajectoryStore(workdir / FOLDER), samples
        self._identity = json.dumps(identity, sort_keys=True)

    def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Writes a complete group; once this returns, no death of the process loses it.

        Raises:
            UserError: it cannot be written; the group is not there, or will be dropped.
        """
        try:
            for trajectory in trajectories:
                self._store.append(trajectory.key[0], trajectory)
        except OSError as error:
            raise self._unwritten(error) from None

    def read(self) -> dict[Place, list[Trajectory]]:
        """All complete groups; what is not whole, or belongs to a start with other tasks or roles, is deleted.

        Raises:
            UserError: a file is damaged, or cannot be written.
        """
        self._check_identity()
        groups: dict[Place, list[Trajectory]] = {}
        for step in self._store.steps():
            samples: dict[Place, dict[int, Trajectory]] = defaultdict(dict)
            for trajectory in self._store.read(step):
                samples[trajectory.key[:2]][trajectory.key[2]] = trajectory
            whole = {
                place: [of_group[sample] for sample in range(self._samples)]
                for place, of_group in sorted(samples.items())
                if set(of_group) == set(range(self._samples))
            }
            if len(whole) < len(samples):
                self._store.write(step, [each for group in whole.values() for each in group])
            groups |= whole
        return groups

    def forget(self, unneeded: Callable[[Purpose, int], bool]) -> None:
        """Deletes the groups of the steps of which ``unneeded`` is true."""
        for step in self._store.steps():
            if unneeded("train", step):
                self._store.discard(step)

    def _check_identity(self) -> None:
        """A checkpoint refuses another identity; before the first one nothing but this file knows it."""
        path = self._store.folder / _IDENTITY
        if path.exists() and path.read_text(encoding="utf-8") != self._identity:
            self.forget(lambda purpose, step: True)
        try:
            write_atomic(path, self._identity)
        except OSError as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write the log of groups {self._store.folder}: {error.strerror}; make room and start again"
        )

    def close(self) -> None:
        """Closes the files."""
        self._store.close()
