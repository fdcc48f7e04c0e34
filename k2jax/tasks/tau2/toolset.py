"""The toolset of a service desk, and the verifier that compares how it was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calling import Toolbox
from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace
from k2jax.agents.verifier import Verifier
from k2jax.errors import UserError
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.tau2.desks import Desk, call_desk, open_desk
from k2jax.trajectory import Reward, Trajectory
from k2jax.trajectory.types import NO_TURN

DESK = "desk"
"""Key of a task's metadata: ``{"domain", "folder", "initial"}``, see ``open_desk``."""


class DeskTools(Toolset):
    """The tools of an episode's desk."""

    def __init__(self):
        self.tools: Sequence[Mapping[str, Any]] = ()
        self.desk: Desk | None = None

    @staticmethod
    def options_of(task: Task) -> list[str]:
        """What a task's metadata choose beyond the task itself: the folder of this machine that is read."""
        folder = desk.get("folder") if isinstance(desk := task.metadata.get(DESK), dict) else None
        return [f"folder={folder}"] if folder else []

    def tools_of(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """See ``Toolset.tools_of``; none of a task that names no desk, which ``open`` refuses."""
        desk = task.metadata.get(DESK)
        return _tools_of_desk(desk.get("domain"), desk.get("folder", "")) if isinstance(desk, dict) else ()

    async def open(self, workplace: Workplace) -> None:
        """Makes the desk in the task's first state.

        Raises:
            UserError: the task names no desk, or one that cannot be made.
        """
        told = workplace.task.metadata.get(DESK)
        if not isinstance(told, dict) or told.keys() != {"domain", "folder", "initial"}:
            raise UserError(f"the task {workplace.task.id!r} names no desk; use the dataset 'tau2'")
        self.desk = open_desk(**told)
        self.tools = self.desk.tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the desk answers.

        Raises:
            ToolError: it refuses.
        """
        assert self.desk is not None
        return call_desk(self.desk, name, arguments)


@functools.lru_cache(maxsize=16)
def _tools_of_desk(domain: str, folder: str) -> Sequence[Mapping[str, Any]]:
    return open_desk(domain, folder, {}).tools


class DeskVerifier(Verifier):
    """tau2's reward: the product of what a task's basis names.

    ``DB``: the database is as after the reference's calls. ``COMMUNICATE``: texts are in the agent's messages, without
    commas, in any case. ``ACTION``: each of the reference's calls was made. ``ENV_ASSERTION``: checks of the database
    hold. An episode that was cut, or in which the agent once neither said nor called anything, earns 0, as in tau2.

    """

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the calls and messages of an episode."""
        messages = [node.message for node in trajectory.nodes if node.turn != NO_TURN and node.message]
        if trajectory.status != "finished":
            return Reward(0.0, info={"cut": True})
        if not all(message.get("tool_calls") or str(message.get("content") or "").strip() for message in messages):
            return Reward(0.0, info={"silent": True})
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        expected = task.metadata["expected"]
        desk = await _after(task, calls)
        parts = {
            "DB": float(desk.digest() == _reference(task).digest()),
            "COMMUNICATE": float(all(_is_told(text, messages) for text in expected["communicate"])),
            "ACTION": float(all(_is_called(action, calls) for action in expected["actions"])),
            "ENV_ASSERTION": float(all(_is_true(desk, assertion) for assertion in expected["assertions"])),
        }
        return Reward(float(all(parts[name] for name in expected["basis"])), parts)


async def _after(task: Task, calls: Sequence[Mapping[str, Any]]) -> Desk:
    """A new desk after an episode's calls, wrong ones included."""
    tools = DeskTools()
    await tools.open(Workplace(task, 0))
    toolbox = Toolbox([tools])
    for call in calls:
        await toolbox.call(call)
    assert tools.desk is not None
    return tools.desk


def _reference(task: Task) -> Desk:
    """A new desk after the reference's calls; those that the desk refuses change nothing (as in tau2)."""
    desk = open_desk(**task.metadata[DESK])
    for action in task.metadata["expected"]["actions"]:
        try:
            call_desk(desk, action["name"], action["arguments"])
        except ToolError:
            continue
    return desk


def _is_told(text: str, messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(text.lower() in str(message.get("content") or "").lower().replace(",", "") for message in messages)


def _is_called(action: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call has an action's name and its arguments, of which by default those of the call are compared."""
    for call in calls:
        function = call.get("function") or {}
        try:
            arguments = parse_bounded_json(function.get("arguments") or "{}")
        except ValueError:
            continue
        if function.get("name") != action["name"] or not isinstance(arguments, dict):
            continue
        names = action.get("compare_args", arguments)
        if {n: arguments.get(n) for n in names} == {n: action["arguments"].get(n) for n in names}:
            return True
    return False


def _is_true(desk: Desk, assertion: Mapping[str, Any]) -> bool:
    try:
        return bool(desk.run(assertion["func_name"], assertion["arguments"])) == assertion.get("assert_value", True)
    except Exception:  # a check of what is not there does not hold
        return False
