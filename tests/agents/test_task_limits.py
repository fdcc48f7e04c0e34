"""Limits that a task sets hold for its sandboxes and its tests, and are the user's."""

import asyncio
import dataclasses

import pytest

from k2jax.agents import Task
from k2jax.agents.environment import Services
from k2jax.agents.environments.serve_offer import Offer
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.sandbox import Limits, SandboxSpec
from k2jax.agents.sandbox.task_limits import TaskLimits
from k2jax.agents.scorer import Scorer
from k2jax.agents.verifier import Verifier
from k2jax.agents.verifier_pool.pool import VerifierPool
from k2jax.config.schema import TaskConfig
from k2jax.errors import UserError
from k2jax.trajectory import Reward, Trajectory
from tests.agents.sandbox.backends import backend
from tests.tasks.test_code import TASK, block, judged

PLAIN = Task("t", "d", ({"role": "user", "content": "?"},), "v", tools=("shell",))
CHOSEN = TaskConfig(limits=("memory=64", "disk=3", "files=40", "processes=9", "test_seconds=0.5"))
SHOWN = "df -k /work | tail -1; df -i /work | tail -1"


def test_limits_of_a_config_are_a_tasks_and_are_kept_as_json():
    task = PLAIN.with_choices(CHOSEN)
    assert task.limits == TaskLimits(64, 3, 40, 9, 0.5) and Task.from_json(task.to_json()) == task
    assert "limits" not in PLAIN.to_json() and Task.from_json(PLAIN.to_json()) == PLAIN
    some = dataclasses.replace(PLAIN, limits=TaskLimits(memory=7, files=8)).with_choices(
        TaskConfig(limits=("files=9",))
    )
    assert some.limits == TaskLimits(memory=7, files=9)
    assert task.limits.of(Limits(open_files=5)) == Limits(64 << 20, 9, 3 << 20, 40, 5)
    assert PLAIN.limits.of(Limits()) == Limits()


@pytest.mark.parametrize(
    "wrong", ["memory=x", "memory=0", "disk=-1", "memry=1", "test_seconds=inf", "memory", "files=1.5"]
)
def test_wrong_limits_are_refused_in_one_line(wrong):
    with pytest.raises(UserError, match="limit"):
        PLAIN.with_choices(TaskConfig(limits=(wrong,)))


@pytest.mark.parametrize("wrong", ['{"memory": -1}', '{"memory": "1"}', '{"more": 1}', '{"files": true}', "[]", "1"])
def test_wrong_limits_of_json_are_refused(wrong):
    line = PLAIN.to_json().replace('"budget"', f'"limits": {wrong}, "budget"', 1)
    with pytest.raises(UserError, match="is no task"):
        Task.from_json(line)


def test_a_client_of_a_server_sets_no_limit_beyond_what_is_offered():
    task = PLAIN.with_choices(CHOSEN)
    with pytest.raises(UserError, match=r"does not offer the limit 'memory=64'.*--limits"):
        Offer().check(task)
    with pytest.raises(UserError, match="limit 'disk=3'"):
        Offer(limits=("memory=64", "disk=2")).check(task)
    Offer(limits=("memory=100", "disk=3", "files=40", "processes=9", "test_seconds=1")).check(task)
    Offer().check(PLAIN)


class Looking(Verifier):
    async def score(self, task, trajectory, sandbox):
        return Reward(1.0, info={"seen": (await sandbox.exec(["/bin/sh", "-c", SHOWN])).stdout.decode().split()})


def test_a_tasks_sandboxes_have_its_limits(monkeypatch):
    task = dataclasses.replace(PLAIN.with_choices(CHOSEN), verifier="looking")

    async def seen():
        environment = ToolEnvironment(Services(lambda: backend("bubblewrap")))
        await environment.reset(task, 0)
        call = {"id": "1", "function": {"name": "shell", "arguments": {"command": SHOWN}}}
        shown = (await environment.step({"role": "assistant", "tool_calls": [call]})).observation.messages[0]["content"]
        await environment.close()
        sandbox = await environment.open_workspace(task, SandboxSpec(limits=Limits(disk=5 << 20, files=10)))
        joined = (await sandbox.exec(["/bin/sh", "-c", SHOWN])).stdout.decode()
        await environment.close()
        return shown.split(), joined.split()

    own, joined = asyncio.run(seen())
    assert (own[1], own[7]) == ("3072", "45") and joined[1] == "5120"
    monkeypatch.setitem(Scorer.__init__.__globals__["verifiers"].added, "looking", f"{__name__}:Looking")
    with VerifierPool(workers=1) as pool:
        scorer = Scorer(pool, backend=backend("bubblewrap"))
        reward = asyncio.run(scorer.score(task, Trajectory("t", "d", (0, 0, 0), status="finished")))
    assert (reward.info["seen"][1], reward.info["seen"][7]) == ("3072", "45")


@pytest.mark.parametrize(("limits", "worth"), [((), 1.0), (("test_seconds=0.3",), 0.0)])
def test_tests_have_the_time_that_the_task_sets(limits, worth):
    task = TASK.with_choices(TaskConfig(limits=limits))
    slow = block("import math, time\ntime.sleep(1)\ndef add(a, b): return a + b")
    easy = dataclasses.replace(task, metadata={"tests": ["assert add(1, 2) == 3"]})
    assert judged(slow, task=easy)[0].value == worth
