"""The tools of an orchestrator: it creates sub-agents by name and assigns tasks, those of one answer at a time.

Whatever becomes of a sub-agent is one message to the orchestrator: its answer; what it has when its budget ends, marked
``[unfinished]``; or ``[failed]`` and why. The orchestrator's own mistakes are errors of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
import contextlib
from typing import Any

from k2jax.agents.swarm.forms import TOOLS, Form
from k2jax.agents.toolsets.calling import RESULT_LIMIT, shortened
from k2jax.agents.toolsets.sub_agents import SubAgents
from k2jax.agents.toolsets.types import ToolError, Toolset, Workplace
from k2jax.client import PromptTooLongError
from k2jax.errors import UserError, abbreviate, nearest
from k2jax.text.media_reading import IMAGE_PART
from k2jax.trajectory import Trajectory

NAME = "swarm"
UNFINISHED, FAILED = "[unfinished]", "[failed]"
"""Marks of a message of a sub-agent whose budget has ended, and of one that has no message."""
_BESIDE = 64  # characters beside each of several messages: its number, and how much of it is left out
_REASONS = {TimeoutError.__name__: "it took too long", PromptTooLongError.__name__: "its prompt is too long"}
"""By the error's type; of a machine's failure the model need not know more."""


class SwarmTools(Toolset):
    """Sub-agents with names and system prompts. An agent that is assigned a task again begins with a new context.

    Args:
        form: of the tools, see ``Form``.
        depth: see ``SubAgents``, as ``steps`` and ``role``.
        steps: of a sub-agent.
        most: agents that an episode may create, and tasks that it may assign.
        live: sub-agents at work at a time.
        seconds: after which a sub-agent that has not ended is cancelled; 0 is no limit [s].
        role: who answers as a sub-agent.
        images: whether a sub-agent sees the images of the task before its prompt.

    Raises:
        UserError: a number is out of range, or images are for a role, which reads text alone.
    """

    concurrent = True  # all is counted before anything is waited for

    def __init__(
        self,
        form: Form = "full",
        *,
        depth: int = 1,
        steps: int = 100,
        most: int = 100,
        live: int = 100,
        seconds: float = 0.0,
        role: str = "",
        images: bool = False,
    ):
        if live < 1 or seconds < 0:
            raise UserError(f"the toolset {NAME!r} needs live of at least 1, and seconds of at least 0")
        if images and role:
            raise UserError(
                f"the toolset {NAME!r} has images and role={role}, and roles read text alone; leave one out"
            )
        self.tools, self._form, self._most, self._most_live, self._seconds = TOOLS[form], form, most, live, seconds
        others = {"form": form, "live": live, "seconds": seconds, "images": images}
        self._agents, self._images = SubAgents(NAME, depth, steps, most, role, others), images
        functions = [tool["function"] for tool in self.tools]
        self._arguments = {each["name"]: set(each["parameters"]["properties"]) for each in functions}
        self._actions = {"create_subagent": self._create, "n": self._create}
        self._assignments = {"assign_task": self._assign, "a": self._assign, "create_sub_agents": self._assign_all}

    async def open(self, workplace: Workplace) -> None:
        """See ``SubAgents.open``."""
        self._agents.open(workplace)
        self._prompts: dict[str, str] = {}  # system prompts by name
        self._live = 0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """See ``Toolset.call``."""
        if others := set(arguments) - self._arguments[name]:  # the schemas of appendix E.8 allow them
            raise ToolError(f"{name} has no argument {abbreviate(min(others))}")
        if name in self._actions:
            return self._actions[name](**arguments)
        return await self._assignments[name](**arguments)

    def _create(self, name: str, system_prompt: str | None = None) -> str:
        if not name.strip() or (system_prompt is not None and not system_prompt.strip()):
            raise ToolError("a sub-agent needs a name and a system prompt")
        if name in self._prompts:
            raise ToolError(f"there is a sub-agent {abbreviate(name)} already")
        if len(self._prompts) == self._most:
            raise ToolError(f"there are {self._most} sub-agents, and no more may be created")
        self._prompts[name] = system_prompt or ""
        return "." if self._form == "compact" else f"The sub-agent {abbreviate(name)} has been created."

    async def _assign(self, agent: str, prompt: str) -> str:
        if agent not in self._prompts:
            raise ToolError(f"there is no sub-agent {abbreviate(agent)}{nearest(agent, list(self._prompts))}")
        with self._at_work([prompt]) as (number,):
            return await self._message(number, prompt, agent)

    async def _assign_all(self, sub_agents: Sequence[Mapping[str, str]]) -> str:
        prompts = [each["prompt"] for each in sub_agents]
        with self._at_work(prompts) as numbers:
            messages = await asyncio.gather(*map(self._message, numbers, prompts))
        room = max(0, RESULT_LIMIT // len(messages) - _BESIDE)  # so that no message is left out for the others' length
        shown = [shortened(message, room) for message in messages]
        return "\n\n".join(f"Sub-agent {place}: {message}" for place, message in enumerate(shown, 1))

    @contextlib.contextmanager
    def _at_work(self, prompts: Sequence[str]):
        """Numbers of the sub-agents that get some prompts; they are live in the ``with`` block."""
        if not all(prompt.strip() for prompt in prompts):
            raise ToolError("the prompt is empty")
        if self._live + len(prompts) > self._most_live:
            raise ToolError(f"{self._live} sub-agents are at work, and at most {self._most_live} may be at a time")
        numbers = self._agents.take(len(prompts))
        self._live += len(prompts)
        try:
            yield numbers
        finally:
            self._live -= len(prompts)

    async def _message(self, number: int, prompt: str, agent: str = "") -> str:
        """The one message of a sub-agent."""
        system = self._prompts.get(agent, "")
        instruction = [{"role": "system", "content": system}] if system else []
        instruction.append({"role": "user", "content": self._content(prompt)})
        ended = await self._agents.run(number, instruction, agent, may_fail=True, seconds=self._seconds)
        # A rebuilt episode has it at once; even so it is live until all calls of this answer have begun, as it was.
        await asyncio.sleep(0)
        return message_of(ended)

    def _content(self, prompt: str) -> str | list[Mapping[str, Any]]:
        if not self._images:
            return prompt
        contents = [message.get("content") for message in self._agents.task.instruction]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        return [*(part for part in parts if part.get("type") == IMAGE_PART), {"type": "text", "text": prompt}]


def message_of(ended: Trajectory) -> str:
    """What an orchestrator is shown of a sub-agent."""
    if ended.status == "masked":
        return f"{FAILED} {_REASONS.get(ended.error.partition(':')[0], 'its machine broke down')}"
    return f"{UNFINISHED} {ended.answer}".strip() if ended.status == "truncated" else ended.answer
