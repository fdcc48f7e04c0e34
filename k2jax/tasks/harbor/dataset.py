"""The dataset ``harbor``: folders of tasks in Harbor's format, as Terminal-Bench 2 and others are published."""

from __future__ import annotations

import base64
from collections.abc import Iterator
import hashlib
from pathlib import Path
import shlex

from absl import logging

from k2jax.agents.egress.allow_list import HOSTS
from k2jax.agents.environments.container import CONTAINER, STEPS, STRATEGY
from k2jax.agents.sandbox.task_limits import TaskLimits
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError
from k2jax.tasks.harbor.task_folder import HarborStep, HarborTask, is_task_folder, read_task
from k2jax.tasks.record_fields import in_split

_DONE = "\n\nWhen you are done, answer without calling a tool."
_LONGEST_COMMAND = 600.0


class HarborTasks:
    """Tasks of a folder; the domain is ``harbor``.

    An image is looked for by the name that the task gives (``docker_image``, or ``FROM`` of a Dockerfile that changes
    no file), else by the task's own name: build the Dockerfile, and unpack the image under that name.
    """

    def __init__(self, path: str, steps: int = 50, memory: int = 8192, disk: int = 4096, split: FileSplit = "train"):
        """The folder of a task, or a folder of such folders.

        Args:
            path: of the folder.
            steps: of an episode, see ``Budget``.
            memory: what a task may ask for at most [MiB].
            disk: what the files of a task's sandbox may take at most, which are in memory [MiB].
            split: ``train``, ``test`` for a tenth of the tasks, by their instructions, or ``all``.
        """
        self._path, self._steps, self._split = path, steps, split
        self._memory, self._disk = memory, disk

    def load(self) -> Iterator[Task]:
        """The tasks in the order of their folders' names; keys that are not read are logged.

        Raises:
            UserError: there is no such folder, or a task cannot be run here; the message says which and why.
        """
        top = Path(self._path).expanduser()
        folders = [top] if is_task_folder(top) else sorted(filter(is_task_folder, top.glob("*")))
        if not folders:
            raise UserError(f"harbor: {top} has no task.toml, and no folder in it has one")
        for folder in folders:
            task = read_task(folder)
            if task.unknown:
                logging.warning("%s: these keys are not read: %s", folder, ", ".join(task.unknown))
            if in_split(task.steps[0].instruction, self._split):
                yield self._task(task)

    def _task(self, task: HarborTask) -> Task:
        seconds = min(max(step.agent_seconds for step in task.steps), _LONGEST_COMMAND)
        limits = TaskLimits(memory=min(task.memory, self._memory), disk=min(task.disk, self._disk))
        solutions = [_solution(step) for step in task.steps]
        return Task(
            id=task.name,
            domain="harbor",
            instruction=({"role": "user", "content": task.steps[0].instruction.strip() + _DONE},),
            verifier="harbor",
            environment="container",
            image=task.image,
            tools=(f"shell timeout={seconds:g}",),
            budget=Budget(steps=self._steps),
            limits=limits,
            metadata={
                CONTAINER: {"user": task.user, "workdir": task.workdir, "env": dict(task.env)},
                STEPS: [_step(step) for step in task.steps],
                STRATEGY: "final" if task.final else "mean",
                "solutions": solutions if all(solutions) else [],
            }
            | ({HOSTS: list(task.hosts)} if task.hosts else {}),
        )


def _step(step: HarborStep) -> dict[str, object]:
    return {
        "instruction": step.instruction.strip() + _DONE,
        "tests": {path: base64.b64encode(data).decode() for path, data in step.tests.items()},
        "seconds": step.seconds,
        "env": dict(step.env),
        "min_reward": step.min_reward,
    }


def _solution(step: HarborStep) -> str:
    """A command that writes the files of a solution and runs it; empty where there is none, or it is no text."""
    lines = ["mkdir -p /solution"]
    for path, data in step.solution.items():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ""
        place = f"/solution/{path}"
        text = text if text.endswith("\n") else text + "\n"
        end = f"END-{hashlib.sha256(data).hexdigest()}"
        lines += [
            f"mkdir -p {shlex.quote(place.rpartition('/')[0])}",
            f"cat > {shlex.quote(place)} <<'{end}'",
            text + end,
        ]
    return "\n".join([*lines, "chmod +x /solution/solve.sh", "/solution/solve.sh"]) if step.solution else ""
