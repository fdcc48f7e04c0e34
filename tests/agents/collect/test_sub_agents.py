"""Agents that delegate to sub-agents, through workers, engines behind sockets and the scheduler."""

import asyncio
import contextlib
import os
import signal

from k2jax.agents.collect.engine_server import EngineServer
from k2jax.agents.collect.journal import stored_trajectory
from k2jax.agents.collect.manager import RolloutManager
from k2jax.agents.collect.queue_file import queued_samples, write_tasks
from k2jax.agents.task import Budget, Task
from k2jax.trajectory import verify
from k2jax.trajectory.encoding import encode
from tests.agents.tool_episodes import BYTES, compact_client

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
    instruction = ({"role": "user", "content": f"tell {number}"},)
    return Task(
        str(number),
        "sums",
        instruction,
        "",
        environment="tools",
        tools=("calculator", "delegate"),
        budget=Budget(steps=5),
    )


async def batch(folder, *, workers, engines, kill=0):
    """All trajectories in the order of keys, requests of sub-agents by engine, sub-episodes and lost workers."""
    folder.mkdir()
    BYTES.save(folder / "tokenizer")
    write_tasks(folder, [("kind", task(number)) for number in range(TASKS)])
    clients = [compact_client(say) for _ in range(engines)]
    paths = [str(folder / f"engine{number}") for number in range(engines)]
    options = {"tokenizer": str(folder / "tokenizer"), "chat": "compact", "seed": 7, "engines": paths}
    options["sampling"] = {"kind": {"max_tokens": 60}}
    emissions = []
    async with contextlib.AsyncExitStack() as opened:
        for client, path in zip(clients, paths, strict=True):
            opened.callback(asyncio.ensure_future(EngineServer(client).serve(path)).cancel)
        runner = "k2jax.agents.collect.episodes:EpisodeRunner"
        made = RolloutManager(folder, runner=runner, options=options, workers=workers, capacity=3)
        manager = await opened.enter_async_context(made)
        async for emission in manager.collect(queued_samples(folder, SAMPLES)):
            emissions.append(emission)
            if len(emissions) == kill:
                os.kill(manager.worker_processes()[0], signal.SIGKILL)
    stored = [
        stored_trajectory(folder, emission.place) for emission in sorted(emissions, key=lambda emission: emission.key)
    ]
    asked = [sum(BYTES.decode(prompt[1:5]) == "add " for prompt, _ in client.calls) for client in clients]
    return stored, asked, (manager.started, manager.lost_workers)


def test_agents_with_sub_agents_give_the_same_batch_with_more_workers_and_engines_and_a_killed_worker(tmp_path):
    first, asked, (started, lost) = asyncio.run(batch(tmp_path / "a", workers=1, engines=1))
    assert (started, lost) == (2 * TASKS * SAMPLES, 0) and asked == [2 * started]
    assert [each.key for each in first] == [(0, prompt, sample) for prompt in range(TASKS) for sample in range(SAMPLES)]
    for each in first:
        number = each.key[1]
        results = [node.message["content"] for node in each.nodes if node.message["role"] == "tool"]
        assert results == [str(number), str(number + 1)] and each.answer == f"{number} and {number + 1}"
        assert not verify(each) and each.status == "finished"
    second, asked, (started, lost) = asyncio.run(batch(tmp_path / "b", workers=2, engines=2, kill=4))
    assert [encode(each) for each in second] == [encode(each) for each in first]
    assert asked[0] == 0 < asked[1], "sub-agents have an engine of their own"
    assert lost == 1 and started >= 2 * TASKS * SAMPLES
