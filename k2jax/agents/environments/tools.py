"""The environment of tasks with tools: it carries out the calls of every answer and shows their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
from typing import Any

from k2jax.agents.egress.allow_list import asked_hosts
from k2jax.agents.environment import NO_SERVICES, Environment, Message, Observation, Services, Step
from k2jax.agents.registry import toolsets
from k2jax.agents.sandbox import HostPaths, Limits, Sandbox, SandboxSpec
from k2jax.agents.sandbox.types import WORK
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calling import CallResult, Toolbox
from k2jax.agents.toolsets.overlap import Overlap
from k2jax.agents.toolsets.types import USER_TURNS, Toolset, Workplace
from k2jax.errors import UserError
from k2jax.trajectory.steps import MOST_CALLS


class ToolEnvironment(Environment):
    """Shows the instruction, then the results of calls.

    An answer that calls no tool is followed by the user's next scripted turn, or ends the episode.

    Calls of one answer run at a time where their toolsets allow it, else in order, up to the task's budget of steps;
    their results keep the order of the calls. A wrong call shows an error message. What a tool runs on may fail: the
    error is typed, and the episode is rebuilt or masked.

    An agent that brings its own tools works in the same sandbox; see ``Environment.open_workspace``.

    Attributes:
        needs_sandbox: whether a task must have a tool that works in a sandbox.
    """

    needs_sandbox = False

    def __init__(self, services: Services = NO_SERVICES):
        """Opens nothing."""
        super().__init__(services)
        self._toolsets: list[Toolset] = []
        self._task: Task | None = None
        self._sandbox: Sandbox | None = None
        self._workplace: Workplace | None = None
        self._toolbox, self._overlap = Toolbox(()), Overlap()
        self._turns: list[str] = []
        self._steps = 0

    @property
    def folder(self) -> str:  # type: ignore[override]
        """Where commands of the sandbox begin: the folder of its image, or ``/work``."""
        return self._sandbox.workdir if self._sandbox is not None else WORK

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[override]
        """The declarations of all tools of the task."""
        return self._toolbox.tools

    @staticmethod
    def tools_of(task: Task) -> Sequence[Mapping[str, Any]]:
        """See ``Environment.tools_of``; those of a server of MCP are known when it has begun."""
        return [tool for text in task.tools for tool in _unopened(text).tools_of(task)]

    async def reset(self, task: Task, seed: int) -> Observation:
        """The instruction, with new toolsets and a new sandbox where one of them needs it.

        Raises:
            UserError: a toolset is unknown or cannot be used here, or two tools have one name.
            InfrastructureError: a toolset or the sandbox cannot be opened.
        """
        await self.close()
        made = [toolsets.make(text) for text in task.tools]
        self._task, self._sandbox = task, await self._open_sandbox(task, made)
        await self.prepare(task, self._sandbox)
        self._overlap = Overlap(self.services.spawn)
        self._workplace = Workplace(task, seed, self._sandbox, self._overlap.spawn, self.services.client_of)
        for toolset in made:
            self._toolsets.append(toolset)  # closed even if it opens halfway
            await toolset.open(self._workplace)
        self._toolbox = Toolbox(made)
        self._turns, self._steps = [str(turn) for turn in task.metadata.get(USER_TURNS, ())], 0
        return Observation(task.instruction)

    async def step(self, action: Message) -> Step:
        """The results of the answer's calls, or the user's next turn, or the end.

        Raises:
            InfrastructureError: a tool failed through no fault of the model; no other call goes on.
        """
        calls = action.get("tool_calls") or ()
        if calls:
            return Step(Observation(tuple(await self._results(calls))))
        self._steps += 1
        reply = await self.user_reply(str(action.get("content") or ""))
        if reply is not None:
            return Step(Observation(({"role": "user", "content": reply},)))
        return Step(Observation(), terminated=True, info=await self.outcome(self._task, self._sandbox))

    @property
    def opened(self) -> Sequence[Toolset]:
        """The toolsets of the episode."""
        return self._toolsets

    async def user_reply(self, text: str) -> str | None:
        """What the user says to an answer that calls no tool; None ends the episode. Here it is the next scripted turn.

        Raises:
            InfrastructureError: whoever plays the user has failed.
        """
        return self._turns.pop(0) if self._turns else None

    async def open_workspace(self, task: Task, needs: SandboxSpec) -> Sandbox:
        """See ``Environment.open_workspace``."""
        await self.close()
        if self.services.backend is None:
            raise UserError(f"the environment {task.environment!r} needs a sandbox; name a backend")
        spec = joined_spec(self._limited_spec(task, needs.read_only), needs)
        self._task, self._sandbox = task, await self.services.backend().open(spec)
        await self.prepare(task, self._sandbox)
        return self._sandbox

    async def collect(self) -> Mapping[str, Any]:
        """See ``Environment.collect``."""
        assert self._task is not None
        return await self.outcome(self._task, self._sandbox)

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """What the episode's sandbox is made of; ``read_only`` is what the toolsets need of the host."""
        return SandboxSpec(image=task.image, read_only=read_only)

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Fills the sandbox before the toolsets are opened; nothing here.

        Raises:
            InfrastructureError: it cannot be filled.
        """

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """What the verifier needs of the sandbox, read when the agent is done: JSON values; nothing here.

        Raises:
            InfrastructureError: it cannot be read.
        """
        return {}

    async def close(self) -> None:
        """Closes the toolsets and the sandbox; everything is closed, whatever fails."""
        opened, sandbox = self._toolsets, self._sandbox
        self._toolsets, self._sandbox = [], None
        async with contextlib.AsyncExitStack() as stack:
            if sandbox is not None:
                if sandbox.egress is not None and self.services.metadata is not None:  # complete when it is closed
                    stack.callback(sandbox.egress.add_to, self.services.metadata)
                stack.push_async_callback(sandbox.close)
            for toolset in opened:
                stack.push_async_callback(toolset.close)

    async def _open_sandbox(self, task: Task, made: Sequence[Toolset]) -> Sandbox | None:
        needing = [text for text, toolset in zip(task.tools, made, strict=True) if toolset.needs_sandbox]
        if not needing and self.needs_sandbox:
            raise UserError(f"the task {task.id!r} needs a tool with a sandbox, such as shell")
        if not needing:
            return None
        if self.services.backend is None:
            raise UserError(f"the toolset {needing[0]!r} of the task {task.id!r} needs a sandbox; name a backend")
        shown = dict.fromkeys(path for toolset in made for path in toolset.read_only)
        return await self.services.backend().open(self._limited_spec(task, tuple(shown)))

    def _limited_spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        spec = self.spec(task, read_only)
        return dataclasses.replace(spec, limits=task.limits.of(spec.limits), hosts=asked_hosts(task.metadata))

    async def _results(self, calls: Sequence[Mapping[str, Any]]) -> list[Message]:
        refusals = [self._refusal(number) for number in range(len(calls))]

        async def carry_out(number: int) -> Message:
            return _message(calls[number], refusals[number] or await self._toolbox.call(calls[number]))

        queues = [None if refusal else self._toolbox.queue(call) for call, refusal in zip(calls, refusals, strict=True)]
        return await self._overlap.run(queues, carry_out)

    def _refusal(self, number: int) -> CallResult | None:
        """Takes a step for a call of an answer; why it is not carried out, or None."""
        limit, taken = self._task.budget.steps if self._task is not None else None, self._steps
        self._steps += 1
        if number >= MOST_CALLS:
            return CallResult(f"Error: an answer may call {MOST_CALLS} tools at most", is_error=True)
        if limit is not None and taken >= limit:
            return CallResult("Error: the budget of steps is used up", is_error=True)
        return None


def _message(call: Mapping[str, Any], result: CallResult) -> Message:
    """The message that shows the result of a call."""
    name = (call.get("function") or {}).get("name") or "tool"
    message = {"role": "tool", "tool_call_id": call.get("id", ""), "name": name, "content": result.content}
    return message | ({"is_error": True} if result.is_error else {})


@functools.lru_cache(maxsize=64)
def _unopened(text: str) -> Toolset:
    """A toolset that no episode uses."""
    return toolsets.make(text)


def joined_spec(spec: SandboxSpec, more: SandboxSpec) -> SandboxSpec:
    """A sandbox that has what either of two has; the image is the first one's, and each limit the higher one."""
    names = [field.name for field in dataclasses.fields(Limits)]
    limits = Limits(**{name: max(getattr(spec.limits, name), getattr(more.limits, name)) for name in names})
    read_only = tuple(dict.fromkeys((*spec.read_only, *more.read_only)))
    return dataclasses.replace(spec, read_only=read_only, limits=limits, env={**spec.env, **more.env})
