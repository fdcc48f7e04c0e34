"""The tasks of a collection as a file, which workers read line by line: the scheduler knows offsets and keys alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import json
from pathlib import Path
from typing import NamedTuple

from k2jax.agents.collect.wire_messages import Key
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic

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


class WrittenTask(NamedTuple):
    """A line of a file of tasks.

    Attributes:
        kind: class of the task, which decides how it is sampled.
        task: what is asked.
        path: numbers of the started tasks from the collection's task on; empty for one of the collection.
    """

    kind: str
    task: Task
    path: tuple[int, ...] = ()

    def line(self) -> bytes:
        """The line."""
        path = {"path": self.path} if self.path else {}
        values = {"kind": self.kind, "task": self.task.to_json(), **path}
        return (json.dumps(values, ensure_ascii=False) + "\n").encode()


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
    values = json.loads(data)
    return WrittenTask(values["kind"], Task.from_json(values["task"]), tuple(values.get("path", ())))
