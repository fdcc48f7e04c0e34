"""The verifier of simulated APIs: after every turn the state is that of the reference, whose results were seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from k2jax.agents.sandbox import Sandbox
from k2jax.agents.scaffolds.scripted import called_all
from k2jax.agents.task import Task
from k2jax.agents.toolsets.calling import Toolbox
from k2jax.agents.toolsets.types import Workplace
from k2jax.agents.verifier import Verifier
from k2jax.tasks.bfcl.simulated_apis import SimulatedAPIs, read_call
from k2jax.trajectory import Reward, Trajectory


class APIStateVerifier(Verifier):
    """1 if every turn ends in the reference's state and has seen all of the reference's results, else 0.

    The calls of the episode and those of the reference are carried out again, each on new objects. Turns whose
    reference calls nothing are not checked (as the leaderboard does).

    """

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the calls of an episode."""
        if trajectory.status != "finished":
            return Reward(0.0, info={"cut": True})
        acted, right = _Replay(task), _Replay(task)
        await acted.begin()
        await right.begin()
        turns, wrong = calls_of_turns([node.message for node in trajectory.nodes if node.message]), []
        for number, expected in enumerate(task.metadata["calls"]):
            for call in turns[number] if number < len(turns) else ():
                await acted.call(call)
            before = right.results.copy()
            tools = right.apis.tools
            for call in called_all([read_call(text, tools) for text in expected])["tool_calls"]:
                await right.call(call)
            if not expected:
                continue
            unseen = list(((right.results - before) - acted.results).elements())
            if differs := acted.apis.differs_from(right.apis):
                wrong.append({"turn": number, "state": differs})
            elif unseen:
                wrong.append({"turn": number, "unseen": [text[:100] for text in unseen]})
        checked = max(1, sum(bool(calls) for calls in task.metadata["calls"]))
        return Reward(float(not wrong), {"turns": 1 - len(wrong) / checked}, {"wrong": wrong})


class _Replay:
    """Calls on new objects; ``results`` counts what they returned."""

    def __init__(self, task: Task):
        self.apis, self.results, self._task = SimulatedAPIs(), Counter(), task

    async def begin(self) -> None:
        await self.apis.open(Workplace(self._task, 0))
        self._toolbox = Toolbox([self.apis])

    async def call(self, call: Mapping[str, Any]) -> None:
        self.results[(await self._toolbox.call(call)).content] += 1


def calls_of_turns(messages: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The calls of each turn of a conversation; a turn begins with a user's message after an assistant's."""
    turns: list[list[Mapping[str, Any]]] = [[]]
    answered = False
    for message in messages:
        if message["role"] == "assistant":
            turns[-1] += message.get("tool_calls") or ()
            answered = True
        elif message["role"] == "user" and answered:
            turns.append([])
            answered = False
    return turns
