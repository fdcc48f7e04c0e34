"""Dialogues of agents with users in simulated worlds, whose calls fail at given rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.agents.environment import OUTCOME, Message
from k2jax.agents.scaffolds.scripted import play
from k2jax.agents.task import Task
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import DroppedError, Made, Record
from k2jax.synthesize.tool_use.planted_faults import (
    ClosedUserEnvironment,
    FaultRates,
    planted_fault,
    with_broken_tool,
)
from k2jax.synthesize.tool_use.world_tasks import draft_of
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.tasks.worlds.dataset import world_task
from k2jax.tasks.worlds.dialogue import WorldEnvironment
from k2jax.tasks.worlds.failures import FailureRates
from k2jax.tasks.worlds.users import UserSpec
from k2jax.tasks.worlds.world_spec import declarations, read_world

STOP = "###STOP###"
"""With which a model that plays a user ends the dialogue, as in tau2."""
_MOST_REPLIES = 20


class AskedUserEnvironment(WorldEnvironment):
    """A world whose user is played by a model.

    Args:
        asker: of the record.
        user: who is played; the model sees nothing of the goal.
    """

    def __init__(self, asker: Asker, user: UserSpec):
        super().__init__()
        self._asker, self._spec = asker, user
        self._said: list[dict[str, str]] = []

    async def user_reply(self, text: str) -> str | None:
        """What the model says."""
        facts = "\n".join(f"- {fact['text']}" for fact in self._spec.facts)
        system = (
            f"You play a customer at a service desk. {self._spec.persona} You have said: {self._spec.opening}\nWhat "
            f"you know, and tell only when it is asked:\n{facts}\nInvent nothing. When all is done, say {STOP}."
        )
        self._said.append({"role": "user", "content": text})  # the agent's words are the user's to this model
        messages = [{"role": "system", "content": system}, *self._said]
        reply = await self._asker.ask("user", "reply", messages)
        self._said.append({"role": "assistant", "content": reply.text})
        return None if STOP in reply.text or len(self._said) > 2 * _MOST_REPLIES else reply.text


def dialogues(failures: float, steps: int, faults: Mapping[str, float], is_user_asked: bool) -> Work:
    """The stage that runs a dialogue of a task.

    Args:
        failures: rate of each kind of failure.
        steps: most calls and messages.
        faults: fields of ``FaultRates``.
        is_user_asked: whether a model plays the user; else it follows its script.
    """
    rates = FailureRates(
        **dict.fromkeys(("unavailable", "permission", "timeout", "partial", "stale", "edge"), failures)
    )
    fault_rates = FaultRates(**faults)

    async def work(record: Record, asker: Asker) -> Made:
        spec, draft = read_world(record["world"]), draft_of(record["task"])
        task = world_task(record["id"], spec, draft, rates, steps, record["tools"], system=record["system"])
        system = task.instruction[0]
        planted = planted_fault(task, asker.seed, fault_rates)
        tools = declarations(spec, record["tools"])

        async def agent(task: Task, messages: Sequence[Message]) -> Message:
            asked = [system, *messages[1:]]
            inputs = {"task": task, "messages": list(messages), "number": record["number"], "seed": asker.seed}
            return (await asker.ask("agent", "message", asked, inputs=inputs, tools=tools)).message

        if is_user_asked:
            environment: WorldEnvironment = AskedUserEnvironment(asker, draft.user)
        else:
            environment = ClosedUserEnvironment(asker.seed) if planted == "user" else WorldEnvironment()
        in_world = with_broken_tool(task, asker.seed) if planted == "tool" else task
        trajectory = await play(in_world, environment, agent, asker.seed)
        if trajectory.status == "masked":
            raise DroppedError("a tool broke its world's rules")
        messages = [dict(node.message) for node in trajectory.nodes if node.message]
        left: Any = trajectory.metadata.get(OUTCOME, {})
        dialogue = {"messages": messages, "status": trajectory.status, "left": left, "planted": planted}
        return Made([{**record, "dialogue": dialogue, "task_json": task.to_json(), "tools_json": tools}])

    return work
