"""The tasks of a collection as a file, which workers read line by line: the scheduler knows offsets and keys alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.agents.collect.wire_messages import Key
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.task import Task
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.trajectory.steps import POLICY
from k2jax.trajectory.types import Purpose

FILE = "tasks.jsonl"


class QueuedTask(NamedTuple):
    """An episode to be run.

    Attributes:
        key: (step, prompt, sample), by which it is older or younger.
        line: offset of its task's line in the file of tasks.
    """

    key: Key
    line: int


def write_tasks(folder: Path | str, tasks: Iterable[tuple[str, Task]]) -> None:
    """Writes the file of tasks: the class of each, which decides how it is sampled, and the task.

    Raises:
        UserError: the folder has a file with other tasks.
    """
    data, path = b"".join(WrittenTask(kind, task).line() for kind, task in tasks), Path(folder) / FILE
    if path.exists():
        if path.read_bytes() != data:
            raise UserError(f"{path} holds other tasks; give another folder, or the same config")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)


def queued_samples(folder: Path | str, samples: int) -> Iterator[QueuedTask]:
    """``samples`` episodes of every task in the file, the first task's first."""
    offset = 0
    with open(Path(folder) / FILE, "rb") as file:
        for prompt, line in enumerate(file):
            for sample in range(samples):
                yield QueuedTask((0, prompt, sample), offset)
            offset += len(line)


class Choices(NamedTuple):
    """What a training run chooses for the episodes of a line.

    Attributes:
        purpose: of the episodes.
        step: of their keys.
        prompt: of their keys.
        sampling: of every class of tasks, the fields of ``Sampling`` by name.
        judged: whether a verifier judges the episodes.
        sub_experts: whether the experts of tokens of sub-episodes are recorded where those of episodes are: nobody
            needs them but who trains on sub-episodes.
    """

    purpose: Purpose
    step: int
    prompt: int
    sampling: Mapping[str, Mapping[str, Any]]
    judged: bool
    sub_experts: bool = False


class WrittenTask(NamedTuple):
    """A line of a file of tasks, or of an order.

    Attributes:
        kind: class of the task, which decides how it is sampled.
        task: what is asked.
        path: numbers of the started tasks from the collection's task on; empty for one of the collection.
        choices: of a training run; None for a collection's, which are the same for all of its tasks.
        role: who answers, see ``k2jax.agents.roles``.
    """

    kind: str
    task: Task
    path: tuple[int, ...] = ()
    choices: Choices | None = None
    role: str = POLICY

    @property
    def sampling(self) -> Sampling | None:
        """How messages of the episode are sampled, in a training run; None in a collection."""
        if self.choices is None:
            return None
        asked = Sampling.from_json(self.choices.sampling[self.kind])
        is_left_out = self.path and not self.choices.sub_experts
        return dataclasses.replace(asked, return_experts=False) if is_left_out else asked

    def line(self) -> bytes:
        """The line; ``read`` is the inverse."""
        more: dict[str, Any] = {"path": self.path} if self.path else {}
        if self.choices is not None:
            more["choices"] = self.choices._asdict()
        if self.role != POLICY:
            more["role"] = self.role
        values = {"kind": self.kind, "task": self.task.to_json(), **more}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()

    @classmethod
    def read(cls, line: bytes | str) -> WrittenTask:
        """Reads a line."""
        values = json.loads(line)
        choices = Choices(**values["choices"]) if "choices" in values else None
        path, role = tuple(values.get("path", ())), values.get("role", POLICY)
        return cls(values["kind"], Task.from_json(values["task"]), path, choices, role)

    def episode(self, key: Key) -> EpisodeKey:
        """The key of the episode of a lease."""
        if self.choices is None:
            return EpisodeKey("train", *key)
        return EpisodeKey(self.choices.purpose, self.choices.step, self.choices.prompt, key[2])


class OrderedEpisode(NamedTuple):
    """An episode that a training run wants.

    Attributes:
        key: of the episode.
        written: its task, with the run's choices.
    """

    key: EpisodeKey
    written: WrittenTask


def read_task(folder: Path, line: int) -> WrittenTask:
    """The task at an offset of a folder's file: of a collection's, or of the one in a worker's shard.

    Raises:
        UserError: no line is there.
    """
    with open(folder / FILE, "rb") as file:
        file.seek(line)
        data = file.readline()
    if not data.endswith(b"\n"):
        raise UserError(f"the file of tasks has no line at byte {line:,}")
    return WrittenTask.read(data)
