"""Agents that delegate to sub-agents, through workers, engines behind sockets and the scheduler."""

import asyncio

from k2jax.agents.task import Budget, Task
from k2jax.trajectory.encoding import encode
from tests.agents.collect.engines import BYTES, collected
from tests.agents.tool_episodes import compact_client

TASKS, SAMPLES = 6, 2


def say(text):
    """The agent of ``tell n`` delegates twice; a sub-agent computes."""
    if text.startswith("<tell "):
        number = text[6]
        done = text.count("!")
        return f"!delegate add {number}+{done}" if done < 2 else f"{number} and {int(number) + 1}"
    if text.startswith("<add "):
        return f"!calc {text[5:8]}" if "!" not in text else text.split("<")[-1].removesuffix(">")
    return "?"


def task(number: int) -> Task:
    instruction, tools = ({"role": "user", "content": f"tell {number}"},), ("calculator", "delegate")
    return Task(str(number), "sums", instruction, "", environment="tools", tools=tools, budget=Budget(steps=5))


def batch(folder, *, workers, engines, kill=0):
    """All trajectories in the order of keys, requests of sub-agents by engine, sub-episodes and lost workers."""
    clients = [compact_client(say) for _ in range(engines)]
    sizes, sampling = {"workers": workers, "capacity": 3}, {"kind": {"max_tokens": 60}}
    tasks = list(map(task, range(TASKS)))
    stored, manager = asyncio.run(
        collected(folder, tasks, clients, SAMPLES, kill=kill, manager=sizes, sampling=sampling)
    )
    asked = [sum(BYTES.decode(prompt[1:5]) == "add " for prompt, _ in client.calls) for client in clients]
    return stored, asked, (manager.started, manager.lost_workers)


def test_agents_with_sub_agents_give_the_same_batch_with_more_workers_and_engines_and_a_killed_worker(tmp_path):
    first, asked, (started, lost) = batch(tmp_path / "a", workers=1, engines=1)
    assert (started, lost) == (2 * TASKS * SAMPLES, 0) and asked == [2 * started]
    for each in first:
        number = each.key[1]
        results = [node.message["content"] for node in each.nodes if node.message["role"] == "tool"]
        assert results == [str(number), str(number + 1)] and each.answer == f"{number} and {number + 1}"
        assert each.status == "finished"
    second, asked, (started, lost) = batch(tmp_path / "b", workers=2, engines=2, kill=4)
    assert [encode(each) for each in second] == [encode(each) for each in first]
    assert asked[0] == 0 < asked[1], "sub-agents have an engine of their own"
    assert lost == 1 and started >= 2 * TASKS * SAMPLES
