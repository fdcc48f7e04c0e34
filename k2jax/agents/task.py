"""What an agent is asked to do, as data: environment, tools, scaffold, instruction and verifier by name."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from k2jax.agents.registry import components, environments, scaffolds, toolsets, verifiers
from k2jax.agents.sandbox.task_limits import TaskLimits, chosen_limits
from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.trajectory.budget import Budget

if TYPE_CHECKING:
    from k2jax.config.schema import TaskConfig


@dataclasses.dataclass(frozen=True)
class Task:
    """One task (the 5-tuple of KAT-Coder-V2, section 2: environment, tools, scaffold, instruction, verifier).

    Attributes:
        id: unique within its dataset.
        domain: tag for rewards and accuracies per class.
        instruction: messages in OpenAI's format that begin the conversation.
        verifier: name of the verifier.
        environment: name of the environment.
        image: root file system of its sandboxes, one of those that the user has chosen; empty for the default.
        tools: names of its toolsets.
        scaffold: name of what turns the task into calls of a model.
        budget: see Budget.
        limits: see TaskLimits.
        thinking: whether answers begin with reasoning, of models that reason.
        judge_truncated: whether what an episode has left is judged where a budget has ended it, as benchmarks' own
            harnesses do; otherwise it is worth 0 without a verdict. An answer that was cut is worth 0 in any case.
        metadata: JSON values for the environment and the verifier, such as the right answer.
    """

    id: str
    domain: str
    instruction: tuple[Mapping[str, Any], ...]
    verifier: str
    _: dataclasses.KW_ONLY
    environment: str = "single_turn"
    image: str = ""
    tools: tuple[str, ...] = ()
    scaffold: str = "chat"
    budget: Budget = Budget()  # noqa: RUF009
    limits: TaskLimits = TaskLimits()  # noqa: RUF009
    thinking: bool = True
    judge_truncated: bool = True
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def with_choices(self, config: TaskConfig) -> Task:
        """The task with what a config puts in the place of the dataset's own choice; what is empty or 0 stays.

        With ``tools`` and no other choice the environment is ``tools``. Prompt components are applied in order.

        Raises:
            UserError: a prompt component is unknown, or raises it.
        """
        environment = config.environment or ("tools" if config.tools else "")
        names = {"tools": config.tools, "scaffold": config.scaffold, "verifier": config.verifier}
        limits = {
            "steps": config.steps,
            "critical_steps": config.critical_steps,
            "total_steps": config.total_steps,
            "tokens": config.episode_tokens,
            "prompt_tokens": config.episode_prompt_tokens,
        }
        budget = dataclasses.replace(self.budget, **{name: limit for name, limit in limits.items() if limit})
        chosen = {name: value for name, value in ({"environment": environment} | names).items() if value}
        task_limits = dataclasses.replace(self.limits, **chosen_limits(config.limits))
        chosen["thinking"] = self.thinking and config.thinking
        chosen["judge_truncated"] = self.judge_truncated and config.judge_truncated
        task = dataclasses.replace(self, budget=budget, limits=task_limits, **chosen)
        for text in config.components:
            task = components.make(text, task=task)
        return task

    def to_json(self) -> str:
        """The task as one line of JSON; ``from_json`` is the inverse.

        What was added to tasks later stands there where it is no default, so that their checksums stay: limits,
        ``judge_truncated`` and the budget of ``total_steps``.
        """
        values = dataclasses.asdict(self)
        if self.budget.total_steps is None:
            del values["budget"]["total_steps"]
        if self.judge_truncated:
            del values["judge_truncated"]
        if not (limits := self.limits.set_limits()):
            del values["limits"]
        else:
            values["limits"] = limits
        return json.dumps(values, ensure_ascii=False, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Reads a line that ``to_json`` wrote.

        Raises:
            UserError: it is no task.
        """
        try:
            values = parse_bounded_json(line)
            values["budget"] = Budget.from_json(values.get("budget", {}))
            values["limits"] = TaskLimits(**values.get("limits", {}))
            for key in ("instruction", "tools"):
                values[key] = tuple(values.get(key, ()))
            task = cls(**values)
        except (ValueError, TypeError, AttributeError, UserError) as error:
            raise UserError(f"a line of a file of tasks is no task: {abbreviate(str(error), 200)}") from None
        if mistake := _mistake(task):
            raise UserError(f"a line of a file of tasks is no task: {mistake}")
        return task


def check_choices(config: TaskConfig) -> None:
    """Raises UserError where a config's names or their options are unknown, so that a run stops before it begins."""
    chosen_limits(config.limits)
    for text in config.tools:
        toolsets.make(text)
    if config.scaffold:
        scaffolds.make(config.scaffold)
    for registry, name in ((environments, config.environment), (verifiers, config.verifier)):
        if name:
            registry.path(name)


def _mistake(task: Task) -> str:
    """Which field of a task from JSON is of a wrong type; empty for none."""
    texts = ("id", "domain", "verifier", "environment", "image", "scaffold")
    wrong = [name for name in texts if not isinstance(getattr(task, name), str)]
    if not all(type(limit) in (int, float) and 0 <= limit < float("inf") for limit in dataclasses.astuple(task.limits)):
        wrong.append("limits")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in task.instruction):
        wrong.append("instruction")
    if not all(isinstance(tool, str) for tool in task.tools):
        wrong.append("tools")
    wrong += [name for name in ("thinking", "judge_truncated") if not isinstance(getattr(task, name), bool)]
    if not isinstance(task.metadata, dict):
        wrong.append("metadata")
    return f"its {' and '.join(wrong)} cannot be read" if wrong else ""
