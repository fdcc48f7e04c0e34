"""What an agent is asked to do, as data: environment, tools, scaffold, instruction and verifier by name."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any

from k2jax.errors import UserError, abbreviate
from k2jax.files.bounded_json import parse_bounded_json


@dataclasses.dataclass(frozen=True)
class Budget:
    """What an episode may use; None is no limit.

    Attributes:
        tokens: tokens that the model samples, over all turns.
        steps: calls of the model.
    """

    tokens: int | None = None
    steps: int | None = None


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
    budget: Budget = Budget()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> str:
        """The task as one line of JSON; ``from_json`` is the inverse."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Reads a line that ``to_json`` wrote.

        Raises:
            UserError: it is no task.
        """
        try:
            values = parse_bounded_json(line)
            values["budget"] = Budget(**values.get("budget", {}))
            for key in ("instruction", "tools"):
                values[key] = tuple(values.get(key, ()))
            task = cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"a line of a file of tasks is no task: {abbreviate(str(error), 200)}") from None
        if mistake := _mistake(task):
            raise UserError(f"a line of a file of tasks is no task: {mistake}")
        return task


def _mistake(task: Task) -> str:
    """Which field of a task from JSON is of a wrong type; empty for none."""
    texts = ("id", "domain", "verifier", "environment", "image", "scaffold")
    wrong = [name for name in texts if not isinstance(getattr(task, name), str)]
    limits = dataclasses.astuple(task.budget)
    if not all(limit is None or (type(limit) is int and limit >= 0) for limit in limits):
        wrong.append("budget")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in task.instruction):
        wrong.append("instruction")
    if not all(isinstance(tool, str) for tool in task.tools):
        wrong.append("tools")
    if not isinstance(task.metadata, dict):
        wrong.append("metadata")
    return f"its {' and '.join(wrong)} cannot be read" if wrong else ""
