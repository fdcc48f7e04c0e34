"""Budgets in steps: calls of tools, answers without one, and the longest chain of them over sub-agents."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.spec import GatewayRollout
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Budget, Task
from k2jax.client import Sampling, ScriptedClient
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.trajectory import Node, Trajectory
from k2jax.trajectory.steps import MOST_CALLS, SPAWNED, critical_steps_so_far, steps_so_far
from k2jax.trajectory.types import ROOT

BYTES = byte_tokenizer()
CHAT = configured_chat(BYTES, "compact")


def calls(number):
    return "\n".join(f"!calc 1+{index}" for index in range(number))


def episode(turns, budget, tools=("calculator",), run=None):
    """An episode whose model says some texts in turn; the last one again and again."""
    said = iter(turns)
    reply = lambda prompt, sampling: [*BYTES.encode(next(said, turns[-1])), CHAT.end]  # noqa: E731
    task = Task("t", "d", ({"role": "user", "content": "go"},), "", environment="tools", tools=tools, budget=budget)
    client = ScriptedClient(reply)
    ended = asyncio.run(
        run_episode(task, client, CHAT, BYTES, ToolEnvironment(), key=EpisodeKey("train", 1, 0, 0), seed=0,
                    sampling=Sampling(max_tokens=8000), spawner=run and Spawner(run))
    )  # fmt: skip
    results = [node.message["content"] for node in ended.nodes if node.message["role"] == "tool"]
    return ended, results, len(client.calls)


@pytest.mark.parametrize(
    ("turns", "budget", "status", "carried_out", "asked"),
    [
        ([calls(30), "done"], Budget(steps=2), "truncated", 2, 1),
        ([calls(2), "done"], Budget(steps=2), "truncated", 2, 1),
        ([calls(2), "done"], Budget(steps=3), "finished", 2, 2),
        ([calls(1), calls(3), "done"], Budget(steps=3), "truncated", 3, 2),
        ([calls(1)], Budget(steps=4), "truncated", 4, 4),
        ([calls(2), "done"], Budget(critical_steps=2), "truncated", 2, 1),
        ([calls(MOST_CALLS + 9), "done"], Budget(), "finished", MOST_CALLS, 2),
        ([calls(1), "done"], Budget(prompt_tokens=1), "truncated", 1, 1),
        ([calls(1), "done"], Budget(prompt_tokens=10**6), "finished", 1, 2),
    ],
)
def test_each_call_of_a_tool_is_a_step_and_those_beyond_the_budget_are_answered_with_an_error(
    turns, budget, status, carried_out, asked
):
    ended, results, calls_of_model = episode(turns, budget)
    assert (ended.status, calls_of_model) == (status, asked)
    assert sum("Error" not in result for result in results) == carried_out
    assert len(results) == sum(turn.count("!") for turn in (turns * 9)[:asked])
    assert ended.metadata["steps"] == steps_so_far(ended) >= carried_out


def test_critical_steps_take_the_longest_sub_agent_of_each_turn():
    child = {"1": 5, "2": 3, "3": 2}

    async def run(spawned):
        ended = Trajectory(spawned.task.id, "d", (1, 0, 0), status="finished")
        for turn in range(child[spawned.task.id[-1]]):
            ended.add(sampled(turn, 0))
        return ended

    def delegating(number):
        return "\n".join(["!delegate look"] * number)

    ended, _, asked = episode([delegating(2), delegating(1), "done"], Budget(), ("delegate",), run)
    assert {number: (link["turn"], link["critical_steps"]) for number, link in ended.metadata[SPAWNED].items()} == {
        "0": (1, 5), "1": (1, 3), "2": (2, 2),
    }  # fmt: skip
    assert (ended.metadata["steps"], ended.metadata["critical_steps"], asked) == (4, 4 + 5 + 2, 3)
    ended, _, asked = episode([delegating(2), delegating(1), "done"], Budget(critical_steps=7), ("delegate",), run)
    assert (ended.status, ended.metadata["critical_steps"], asked) == ("truncated", 7, 1)


def sampled(turn, number):
    message = {"role": "assistant", "content": "", "tool_calls": [{}] * number}
    tokens = np.zeros(1, np.int32)
    return Node(ROOT, tokens, np.ones(1, bool), np.zeros(1, np.float32), versions=np.zeros(1, np.int64), turn=turn,
                finish="stop", message=message)  # fmt: skip


@given(
    turns=st.lists(st.integers(0, 3), max_size=5),
    children=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=6),
)
def test_critical_steps_are_the_sum_over_turns_of_own_steps_and_the_longest_child(turns, children):
    trajectory = Trajectory("t", "d", (1, 0, 0))
    for turn, number in enumerate(turns):
        trajectory.add(sampled(turn, number))
    trajectory.metadata[SPAWNED] = {
        str(number): {"turn": turn, "critical_steps": steps} for number, (turn, steps) in enumerate(children)
    }
    own = sum(max(1, number) for number in turns)
    longest = sum(max([steps for at, steps in children if at == turn], default=0) for turn in range(6))
    assert (steps_so_far(trajectory), critical_steps_so_far(trajectory)) == (own, own + longest)


def test_a_budget_is_read_from_a_file_of_tasks_and_from_a_rollout_with_all_its_limits():
    budget = Budget(tokens=5, steps=4, critical_steps=3, prompt_tokens=2)
    task = Task("t", "d", ({"role": "user", "content": "go"},), "", budget=budget)
    assert Task.from_json(task.to_json()).budget == budget
    assert GatewayRollout.from_json({"task": "t", "budget": {"critical_steps": 3}}).budget == Budget(critical_steps=3)
