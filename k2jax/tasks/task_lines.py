"""Tasks that are written out in a file, one a line, as ``Task.to_json`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from k2jax.agents.split import FileSplit, split_of
from k2jax.agents.task import Task
from k2jax.errors import UserError

MOST_TASK_BYTES = 1 << 22
"""Of a line."""


class TaskLines:
    """The tasks of a file of any pipeline or program.

    Args:
        path: of the file of JSON lines.
        split: ``train``, ``test`` or ``all``.
    """

    def __init__(self, path: str = "", *, split: FileSplit = "train"):
        if not path:
            raise UserError("task_lines: name the file of tasks with the option path")
        self._path, self._split = path, split

    def load(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            UserError: the file cannot be read, or has a line that is no task.
        """
        yield from read_tasks(self._path, self._split)


def read_tasks(path: str, split: FileSplit, check: Callable[[Task], object] = lambda task: None) -> Iterator[Task]:
    """The tasks of a split of a file.

    Args:
        path: of the file of JSON lines.
        split: of the tasks, by a hash of their ids; or all.
        check: raises UserError for a task that is none of those that are meant.

    Raises:
        UserError: the file cannot be read, or has a line that is no such task.
    """
    file_path = Path(path).expanduser()
    if not file_path.is_file():
        raise UserError(f"there is no file of tasks {file_path}; python -m k2jax.synthesize writes them")
    with open(file_path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_TASK_BYTES + 1), b""), 1):
            try:
                if len(line) > MOST_TASK_BYTES:
                    raise UserError(f"it has more than {MOST_TASK_BYTES:,} bytes")
                task = Task.from_json(line.decode(errors="strict"))
                check(task)
            except (UserError, UnicodeDecodeError) as error:
                raise UserError(f"line {number} of {file_path}: {error}") from None
            if split in ("all", split_of(task.id)):
                yield task
