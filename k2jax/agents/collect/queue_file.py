"""The tasks of a collection as a file, which workers read line by line: the scheduler knows offsets and keys alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import json
import os
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


def queued_samples(folder: Path | str, samples: int, step: int = 0) -> Iterator[QueuedTask]:
    """``samples`` episodes of every task in the file, the first task's first."""
    offset = 0
    with open(Path(folder) / FILE, "rb") as file:
        for prompt, line in enumerate(file):
            for sample in range(samples):
                yield QueuedTask((step, prompt, sample), offset)
            offset += len(line)


class TaskReader:
    """Reads tasks at the offsets of their lines; the last one stays in memory, since samples follow one another."""

    def __init__(self, folder: Path | str):
        self._file = os.open(Path(folder) / FILE, os.O_RDONLY)
        self._last: tuple[int, WrittenTask] | None = None

    def read(self, line: int) -> WrittenTask:
        """The task of a line."""
        if self._last is None or self._last[0] != line:
            self._last = line, _read_line(self._file, line)
        return self._last[1]


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


def read_started(folder: Path, line: int) -> WrittenTask:
    """The started task at an offset of the file in a worker's folder."""
    file = os.open(folder / FILE, os.O_RDONLY)
    try:
        return _read_line(file, line)
    finally:
        os.close(file)


def _read_line(file: int, offset: int) -> WrittenTask:
    data = b""
    while b"\n" not in data:
        part = os.pread(file, 1 << 14, offset + len(data))
        if not part:
            raise UserError(f"the file of tasks has no line at byte {offset:,}")
        data += part
    values = json.loads(data[: data.index(b"\n")])
    return WrittenTask(values["kind"], Task.from_json(values["task"]), tuple(values.get("path", ())))
