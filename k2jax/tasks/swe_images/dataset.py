"""The data set ``swe_images``: issues of repositories that are on their images, in SWE-bench's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from absl import logging

from k2jax.agents.environments.image_repository import PLACE
from k2jax.agents.sandbox.task_limits import TaskLimits
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError
from k2jax.tasks.record_fields import in_split, read_records
from k2jax.tasks.swe_images.row import SWERow, read_row

PUBLISHED = "swebench/sweb.eval.x86_64.{id}:latest"
"""Names of SWE-bench's images, whose rows do not name them."""


class SWEImageTasks:
    """Rows of a file; the domain is ``swe_images``.

    A row names its image (``image_name``, ``docker_image`` or ``image``) and how its tests are run and read
    (``eval_script``, ``test_cmd``, ``test_cmds`` or ``install_config``, ``log_parser``), as those of SWE-bench,
    Multilingual, SWE-Gym, SWE-rebench and SWE-bench-Live do. Beyond them ``workdir``, ``env`` and ``timeout`` are read.
    """

    def __init__(
        self,
        path: str,
        steps: int = 100,
        split: FileSplit = "train",
        *,
        image: str = PUBLISHED,
        skip: bool = False,
        test_seconds: float = 1800.0,
        memory: int = 4096,
        disk: int = 2048,
    ):
        """Rows of a file.

        Args:
            path: JSONL of rows.
            steps: of an episode, see ``Budget``.
            split: ``train``, ``test`` for a tenth of the issues, by content, or ``all``.
            image: name of the image of rows that name none; ``{id}`` is the row's, as SWE-bench writes it.
            skip: whether rows that cannot be run are logged and left out; otherwise the first of them is an error.
            test_seconds: wall time of a row's tests; a row may ask for less [s].
            memory: of a sandbox [MiB].
            disk: what files in it may take beyond the image, which are in memory [MiB].
        """
        self._path, self._steps, self._split, self._image, self._skip = path, steps, split, image, skip
        self._seconds, self._limits = test_seconds, {"memory": memory, "disk": disk}

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file cannot be read, or a row cannot be run here; the message says which and why.
        """
        for number, record in enumerate(read_records("swe_images", self._path), 1):
            try:
                row = read_row(record, self._image)
            except UserError as error:
                message = f"swe_images: row {number} of {self._path}, {_name(record)}: {error}"
                if not self._skip:
                    raise UserError(f"{message}; skip=true leaves such rows out") from None
                logging.warning("%s", message)
                continue
            if in_split(row.statement, self._split):
                yield self._task(row)

    def _task(self, row: SWERow) -> Task:
        seconds = min(row.seconds or self._seconds, self._seconds)
        return Task(
            id=row.name,
            domain="swe_images",
            instruction=({"role": "user", "content": _prompt(row)},),
            verifier="swe_images",
            environment="image_repository",
            image=row.image,
            tools=("shell timeout=120", "edit"),
            budget=Budget(steps=self._steps),
            limits=TaskLimits(test_seconds=seconds, **self._limits),
            metadata={
                PLACE: {"workdir": row.workdir, "env": dict(row.env)},
                "base": row.base,
                "patch": row.patch,
                "test_patch": row.test_patch,
                "fail_to_pass": row.fail_to_pass,
                "pass_to_pass": row.pass_to_pass,
                "commands": [row.build, row.tests, row.report],
                "parser": row.parser,
                "marked": row.marked,
            },
        )


def _name(record: dict[str, Any]) -> str:
    name = record.get("instance_id")
    return name[:100] if isinstance(name, str) and name.isprintable() else "without a name"


def _prompt(row: SWERow) -> str:
    place = f"The folder {row.workdir}" if row.workdir else "The folder in which your commands begin"
    return (
        f"{place} holds a git repository. Change its files so that this issue is solved:\n\n{row.statement.strip()}\n\n"
        "Changes of the tests that judge do not count. When you are done, answer without calling a tool."
    )
