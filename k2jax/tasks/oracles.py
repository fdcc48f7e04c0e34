"""Oracles of the datasets: policies that solve every task from what its metadata know."""

from __future__ import annotations

from collections.abc import Sequence

from k2jax.agents.environment import Message
from k2jax.agents.environments.repository import TREE
from k2jax.agents.scaffolds.scripted import called, called_all, play_actions, said
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.bfcl.simulated_apis import APIS, read_call
from k2jax.tasks.characters.dataset import ANSWER_MARK
from k2jax.tasks.tool_use.demonstrations import solved


def answer_line(task: Task, messages: Sequence[Message]) -> Message:
    """The answer in the form that the verifier ``answer_line`` reads."""
    return said(f"Answer: {task.metadata['answer']}")


def boxed(task: Task, messages: Sequence[Message]) -> Message:
    """The answer in the box of the verifier ``math``."""
    return said(f"\\boxed{{{task.metadata['answer']}}}")


def marked(task: Task, messages: Sequence[Message]) -> Message:
    """The answer of reasoning-gym's own entry."""
    return said(f"<answer>{task.metadata['entry']['answer']}</answer>")


def worked_out(task: Task, messages: Sequence[Message]) -> Message:
    """The working of a character problem and its answer."""
    return said(f"{task.metadata['working']}{ANSWER_MARK}{task.metadata['answer']}")


def canonical_program(task: Task, messages: Sequence[Message]) -> Message:
    """The canonical solution of a programming task, as a block of code."""
    return said(f"```python\n{task.metadata['solution']}\n```")


def reference_patch(task: Task, messages: Sequence[Message]) -> Message:
    """Applies the reference patch of a task in a repository."""
    return _applied(f"cd {TREE} && ", task, messages)


def reference_patch_on_image(task: Task, messages: Sequence[Message]) -> Message:
    """Applies the reference patch of a task whose commands begin in its repository."""
    if not task.metadata["patch"]:
        raise UserError(f"the row {task.id!r} has no patch, which the oracle applies")
    return _applied("", task, messages)


def _applied(before: str, task: Task, messages: Sequence[Message]) -> Message:
    command = f"{before}git apply - <<'END-OF-PATCH'\n{task.metadata['patch']}\nEND-OF-PATCH"
    return play_actions([called("shell", command=command)], messages)


def reference_calls(task: Task, messages: Sequence[Message]) -> Message:
    """The reference's calls of each turn in one message, and then a message that ends the turn."""
    tools, actions = task.metadata[APIS]["tools"], []
    for calls in task.metadata["calls"]:
        if calls:
            actions.append(called_all([read_call(text, tools) for text in calls]))
        actions.append(said("Done."))
    return play_actions(actions, messages)


def shell_solution(task: Task, messages: Sequence[Message]) -> Message:
    """The reference solution of a terminal task, in one command."""
    return play_actions([called("shell", command=task.metadata["solution"])], messages)


def container_solutions(task: Task, messages: Sequence[Message]) -> Message:
    """The reference solution of each step of a task on an image, in one command, and then a message that ends it."""
    if not task.metadata["solutions"]:
        raise UserError(f"the task {task.id!r} has no solution/solve.sh of text for each of its steps")
    solved = [[called("shell", command=command), said("Done.")] for command in task.metadata["solutions"]]
    return play_actions([action for step in solved for action in step], messages)


def tool_use(task: Task, messages: Sequence[Message]) -> Message:
    """The calls of a solution, and then the answer."""
    return play_actions([message for message in solved(task) if message["role"] == "assistant"], messages)
