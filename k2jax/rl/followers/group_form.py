"""Scored groups as values of a message: what training needs of them.

What a critic said of pairs stays where it was said: its metrics are written by the controller, and its rewards are
among the terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k2jax.agents.collect.queue_file import WrittenTask
from k2jax.agents.mixture import DrawnTask, TaskMixture
from k2jax.rl.groups import PromptGroup, RewardTerm
from k2jax.trajectory.encoding import decode, encode


def group_values(groups: Sequence[PromptGroup]) -> list[dict[str, Any]]:
    """Complete groups with the terms of their rewards; a prompt of the mixture goes by its number."""
    return [
        {
            "number": group.number,
            "key": list(group.key),
            "prompt": None if group.number >= 0 else WrittenTask(*group.prompt).line(),
            "trajectories": [encode(trajectory) for trajectory in group.trajectories],
            "purpose": group.purpose,
            "terms": [[term.name, term.values_K, float(term.weight)] for term in group.terms],
        }
        for group in groups
    ]


def groups_of(values: list[dict[str, Any]], mixture: TaskMixture) -> list[PromptGroup]:
    """The groups that ``group_values`` was given.

    Args:
        values: of the message.
        mixture: of the run.
    """
    return [
        PromptGroup(
            each["number"],
            tuple(each["key"]),
            _prompt(each, mixture),
            [decode(data) for data in each["trajectories"]],
            purpose=each["purpose"],
            terms=[RewardTerm(name, values_K, weight) for name, values_K, weight in each["terms"]],
        )
        for each in values
    ]


def _prompt(values: dict[str, Any], mixture: TaskMixture) -> DrawnTask:
    if values["prompt"] is None:
        return mixture.prompt(values["number"])
    written = WrittenTask.read(values["prompt"])
    return DrawnTask(written.kind, written.task)
