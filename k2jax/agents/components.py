"""Prompt components: functions of a task that return it with another prompt, named in a config."""

from __future__ import annotations

import dataclasses

from k2jax.agents.task import Task


def system(task: Task, text: str) -> Task:
    """The task with a system message before its instruction, or with ``text`` at the end of the one that it has."""
    first, *rest = task.instruction or ({"role": "user", "content": ""},)
    if first.get("role") == "system":
        joined = {**first, "content": f"{first['content']}\n\n{text}"}
        return dataclasses.replace(task, instruction=(joined, *rest))
    return dataclasses.replace(task, instruction=({"role": "system", "content": text}, *task.instruction))


def suffix(task: Task, text: str) -> Task:
    """The task with ``text`` on lines of its own at the end of the last message of its instruction."""
    *rest, last = task.instruction
    return dataclasses.replace(task, instruction=(*rest, {**last, "content": f"{last['content']}\n\n{text}"}))
