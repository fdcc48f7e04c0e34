"""Orchestrators for tests: the calls of their answers are written down, and what their sub-agents do is a coroutine."""

import asyncio

import numpy as np

from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.spawning import Spawner
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.types import ROOT
from tests.agents.tool_episodes import KEY, called, task


def ended(spawned, text, status="finished", **fields):
    """The trajectory of a sub-agent whose last message is a text."""
    trajectory = Trajectory(spawned.task.id, "d", KEY.place, status=status, **fields)
    tokens, message = np.zeros(1, np.int32), {"role": "assistant", "content": text}
    arrays = {"versions": np.zeros(1, np.int64), "turn": 0, "finish": "stop", "message": message}
    trajectory.add(Node(ROOT, tokens, np.ones(1, bool), np.zeros(1, np.float32), **arrays))
    return trajectory


def spawning(spawner):
    """What an environment gets of a rollout with this spawner."""

    async def spawn(task, kind="", role="", *, call=0, **options):
        return (await spawner.spawn(task, kind, role, **options))[1]

    return Services(spawn=spawn)


async def messages_of(services, toolset, answers, *, others=("calculator",), **fields):
    """The results of the calls of each answer, calls being ``(name, arguments)``."""
    environment = ToolEnvironment(services)
    await environment.reset(task(tools=(*others, toolset), **fields), 0)
    shown = []
    for calls in answers:
        step = await environment.step({"role": "assistant", "tool_calls": [called(*call) for call in calls]})
        shown.append([message["content"] for message in step.observation.messages])
    await environment.close()
    return shown


def orchestrated(run, toolset, *answers, **fields):
    """The same, where ``run`` is what sub-agents do."""
    return asyncio.run(messages_of(spawning(Spawner(run)), toolset, answers, **fields))


def create(name, system_prompt="You are careful."):
    return "create_subagent", {"name": name, "system_prompt": system_prompt}


def assign(agent, prompt="look"):
    return "assign_task", {"agent": agent, "prompt": prompt}
