"""Budgets in steps: calls of tools, answers without one, and the longest chain of them over sub-agents."""

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import networkx
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
from k2jax.trajectory.encoding import decode, encode
from k2jax.trajectory.steps import (
    AGENT,
    MOST_CALLS,
    SPAWNED,
    add_spawned,
    critical_steps_so_far,
    steps_so_far,
    total_steps_so_far,
)
from k2jax.trajectory.swarm import swarm_record
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
    record = swarm_record(ended)
    assert (record.used, record.assigned, record.finished, record.peak, record.parallelism) == (3, 3, 3, 2, 13 / 10)
    # The two of the first answer are one stage.
    assert (ended.metadata["steps"], ended.metadata["critical_steps"], asked) == (4, 3 + 5 + 2, 3)
    assert ended.metadata["total_steps"] == 3 + 5 + 3 + 2
    assert [link["call"] for link in ended.metadata[SPAWNED].values()] == [0, 1, 0]
    assert [list(each.spawned) for each in (ended, *ended.spawned.values())] == [[0, 1, 2], [], [], []]
    for limit, asked_for in ((Budget(critical_steps=6), 1), (Budget(critical_steps=7), 2), (Budget(total_steps=9), 1),
                             (Budget(total_steps=10), 2)):  # fmt: skip
        ended, _, asked = episode([delegating(2), delegating(1), "done"], limit, ("delegate",), run)
        assert (ended.status, asked) == ("truncated", asked_for)


def test_agents_that_are_created_and_given_tasks_in_one_answer_are_one_stage():
    names = ["n", "n", "get", "a", "n"]
    trajectory = Trajectory("t", "d", (1, 0, 0))
    node = sampled(0, 5)
    node.message["tool_calls"][:] = [{"function": {"name": name}} for name in names]
    trajectory.add(node)
    assert (steps_so_far(trajectory), critical_steps_so_far(trajectory)) == (5, 2)  # also where the task was refused
    child = agent([(2, ())])
    child.metadata[AGENT] = "x"  # one without a name is created with its task
    add_spawned(trajectory, 0, (1, 3), child)
    assert (critical_steps_so_far(trajectory), total_steps_so_far(trajectory)) == (2 + 2, 2 + 2)
    for name in names[:2] + names[3:]:
        message = {"role": "tool", "name": name, "content": "ok"}
        shown = message if trajectory.nodes[1:] else message | {"is_error": True}
        trajectory.add(Node.observed(len(trajectory.nodes) - 1, (), shown))
    assert swarm_record(trajectory).created == 2


def sampled(turn, number):
    message = {"role": "assistant", "content": "", "tool_calls": [{}] * number}
    tokens = np.zeros(1, np.int32)
    return Node(ROOT, tokens, np.ones(1, bool), np.zeros(1, np.float32), versions=np.zeros(1, np.int64), turn=turn,
                finish="stop", message=message)  # fmt: skip


def agents_of(width):
    """An agent's answers: calls of tools that spawn nothing, and of each that may the sub-agents."""
    own = st.integers(0, 3)
    return st.recursive(
        st.lists(st.tuples(own, st.just(())), min_size=1, max_size=3),
        lambda agents: st.lists(
            st.tuples(own, st.lists(st.lists(agents, max_size=width), max_size=2 * width - 1)), min_size=1, max_size=3
        ),
        max_leaves=8,
    )


def agent(turns):
    """The trajectory of an agent and all below it."""
    trajectory, number = Trajectory("t", "d", (1, 0, 0), status="finished"), 0
    for turn, (plain, spawning) in enumerate(turns):
        trajectory.add(sampled(turn, plain + len(spawning)))
        for call, children in enumerate(spawning):
            for child in children:
                add_spawned(trajectory, number, (turn + 1, plain + call), agent(child))
                number += 1
    return trajectory


def longest_chain(turns):
    """Over a graph whose edges are steps: those of a turn one after another, then one for all that spawn at once."""
    graph, ends = networkx.DiGraph(), itertools.count(1)

    def add(begin, steps):
        for _ in range(steps):
            graph.add_edge(begin, begin := next(ends))
        return begin

    def follow(turns, begin):
        for plain, spawning in turns:
            spawned = [child for children in spawning for child in children]
            childless = sum(not children for children in spawning)
            begin = add(begin, max(plain + childless + bool(spawned), not spawned))
            reached, begin = [begin, *(follow(child, begin) for child in spawned)], next(ends)
            graph.add_weighted_edges_from((end, begin, 0) for end in reached)
        return begin

    graph.add_node(0)
    follow(turns, 0)
    return networkx.dag_longest_path_length(graph, default_weight=1)


@settings(max_examples=60)
@given(agents_of(2))
def test_critical_steps_are_the_longest_chain_of_steps_over_all_agents(turns):
    trajectory = agent(turns)
    assert critical_steps_so_far(trajectory) == longest_chain(turns)
    assert decode(encode(trajectory)).spawned.keys() == trajectory.spawned.keys()


@settings(max_examples=60)
@given(agents_of(2), st.data())
def test_a_branch_that_is_not_longer_than_the_longest_changes_nothing(turns, data):
    before, at = critical_steps_so_far(agent(turns)), data.draw(st.integers(0, len(turns) - 1))
    plain, spawning = turns[at]
    branches = [child for children in spawning for child in children]
    if branches:
        branch = min(branches, key=lambda child: critical_steps_so_far(agent(child)))
        more = agent([*turns[:at], (plain, [*spawning, [branch]]), *turns[at + 1 :]])
        assert critical_steps_so_far(more) == before
        assert total_steps_so_far(more) == total_steps_so_far(agent(turns)) + total_steps_so_far(agent(branch))


@settings(max_examples=60)
@given(agents_of(1))
def test_serial_work_is_as_long_as_all_of_it(turns):
    assert critical_steps_so_far(agent(turns)) == total_steps_so_far(agent(turns))


def test_a_budget_is_read_from_a_file_of_tasks_and_from_a_rollout_with_all_its_limits():
    budget = Budget(tokens=5, steps=4, critical_steps=3, prompt_tokens=2)
    task = Task("t", "d", ({"role": "user", "content": "go"},), "", budget=budget)
    assert Task.from_json(task.to_json()).budget == budget
    assert GatewayRollout.from_json({"task": "t", "budget": {"critical_steps": 3}}).budget == Budget(critical_steps=3)
