"""A swarm through workers and engines behind sockets: sub-agents that fail, hang, or lose their worker."""

import asyncio

from k2jax.agents.sandbox import SandboxError
from k2jax.agents.task import Budget, Task
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.client import PromptTooLongError
from k2jax.trajectory.encoding import encode
from k2jax.trajectory.steps import AGENT, POLICY, ROLE
from k2jax.trajectory.swarm import swarm_record
from tests.agents.collect.engines import BYTES, collected
from tests.agents.tool_episodes import compact_client

TASKS, SAMPLES = 4, 2
HANG, LONG = TASKS, TASKS + 1
"""Numbers of the tasks whose sub-agent never answers, and whose sub-agent is told more than fits its engine."""


def breaking():
    """A toolset whose machine is gone."""

    def crash() -> str:
        """Crashes."""
        raise SandboxError("gone")

    return FunctionTools([crash])


def say(text):
    """The agent of ``tell n`` has three sub-agents: two compute, and the machine of the third fails."""
    if text.startswith("<tell "):
        number = text[6]
        task = {HANG: ["!a x hang"], LONG: [f"!a x {'z' * 300}"]}.get(int(number))
        calls = ["!n x", *(task or [f"!a x add {number}+1", "!a x crash", f"!a x add {number}+2"])]
        return "done" if "!" in text else "\n".join(calls)
    if text.startswith("<add "):
        return f"!calc {text[5:8]}" if "!" not in text else text.split("<")[-1].removesuffix(">")
    return "!crash"


class Hanging:
    """A client that never answers a prompt of ``hang``, and refuses long ones of its sub-agents."""

    def __init__(self, client):
        self._client, self.cancelled = client, 0
        self.calls, self.version = client.calls, 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def generate(self, prompt, sampling, **options):
        if BYTES.decode(prompt[1:5]) == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        if BYTES.decode(prompt[1:4]) == "zzz":
            raise PromptTooLongError("300 of 200 tokens")
        return await self._client.generate(prompt, sampling, **options)


def task(number: int) -> Task:
    tools = ("calculator", "breaking", f"swarm form=compact seconds={0.5 * (number == HANG)}")
    instruction = ({"role": "user", "content": f"tell {number}"},)
    return Task(str(number), "d", instruction, "", environment="tools", tools=tools, budget=Budget(steps=9))


def batch(folder, numbers, *, workers, engines, kill=0):
    """All trajectories in the order of keys, the clients and the manager."""
    clients = [Hanging(compact_client(say)) for _ in range(engines)]
    options = {"sampling": {"kind": {"max_tokens": 400}}}
    options["added"] = [("toolset", "breaking", f"{__name__}:breaking")]
    sizes = {"workers": workers, "capacity": 3}
    tasks = [task(number) for number in numbers]
    stored, manager = asyncio.run(collected(folder, tasks, clients, SAMPLES, kill=kill, manager=sizes, **options))
    return stored, clients, manager


def shown(trajectory):
    return [node.message["content"] for node in trajectory.nodes if node.message["role"] == "tool"]


def test_a_sub_agent_that_fails_is_one_message_and_the_batch_does_not_depend_on_workers_that_are_killed(tmp_path):
    first, _, manager = batch(tmp_path / "a", range(TASKS), workers=1, engines=1)
    for each in first:
        number = each.key[1]
        assert shown(each) == [".", f"{number + 1}", "[failed] its machine broke down", f"{number + 2}"]
        record = swarm_record(each)
        assert (each.status, each.answer, record.assigned, record.finished) == ("finished", "done", 3, 2)
    assert manager.lost_workers == 0
    second, _, manager = batch(tmp_path / "b", range(TASKS), workers=2, engines=2, kill=2)
    assert manager.lost_workers == 1 and [encode(each) for each in second] == [encode(each) for each in first]


def test_a_sub_agent_that_hangs_and_one_that_is_told_too_much_are_one_message(tmp_path):
    stored, clients, _ = batch(tmp_path, [HANG, LONG], workers=1, engines=1)
    messages = ["[failed] it took too long"] * SAMPLES + ["[failed] its prompt is too long"] * SAMPLES
    assert [shown(each) for each in stored] == [[".", message] for message in messages]
    assert {each.status for each in stored} == {"finished"} and clients[0].cancelled == SAMPLES
    assert {(each.created, each.used, each.assigned) for each in map(swarm_record, stored)} == {(1, 1, 1)}
    assert {each.spawned[0].metadata[key] for each in stored for key in (AGENT, ROLE)} == {"x", POLICY}
