"""Calls of one answer overlap where their toolsets say that they may; results and numbers do not depend on timing."""

import asyncio
import time

import pytest

from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.registry import toolsets
from k2jax.agents.sandbox import SandboxError
from k2jax.agents.spawning import Spawner
from k2jax.agents.task import Budget, Task
from k2jax.agents.toolsets.calculator import calculator
from k2jax.agents.toolsets.delegate import DelegateTools
from k2jax.agents.toolsets.edit import EditTool
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.agents.toolsets.python import PythonTool
from k2jax.agents.toolsets.shell import ShellTool
from k2jax.agents.toolsets.store import StoreTools
from k2jax.client import Sampling
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import SPAWNED
from tests.agents.tool_episodes import BYTES, COMPACT, KEY, called, compact_client, task

LOG = []


async def wait(name: str, seconds: float) -> str:
    """Waits, and notes when it begins and ends."""
    LOG.append(f"{name} begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        LOG.append(f"{name} is cancelled")
        raise
    LOG.append(f"{name} ends")
    return name


async def fail(seconds: float) -> str:
    """Fails after a while."""
    await asyncio.sleep(seconds)
    raise SandboxError("it is gone")


def waiting():
    return FunctionTools([wait, fail])


class OneAtATime(FunctionTools):
    """The same with state of its own."""

    def __init__(self):
        super().__init__([self.wait_here])

    async def wait_here(self, name: str, seconds: float) -> str:
        """Waits."""
        return await wait(name, seconds)


class Researcher(FunctionTools):
    """Sub-episodes one after another, each after it has waited for something of any duration."""

    delays = ()

    def __init__(self):
        super().__init__([self.research], concurrent=True)

    async def open(self, workplace):
        self._spawn = workplace.spawn

    async def research(self, name: str) -> str:
        """Asks twice."""
        for number in range(2):
            await self._spawn(Task(f"{name}{number}", "d", ({"role": "user", "content": name},), ""))
            await asyncio.sleep(self.delays[name])
        return name


@pytest.fixture(autouse=True)
def added(monkeypatch):
    LOG.clear()
    for name in ("waiting", "OneAtATime", "Researcher"):
        monkeypatch.setitem(toolsets.added, name.lower(), f"{__name__}:{name}")


def step(tools, *calls, services=None, **fields):
    """The results of one answer's calls, and how long they took [s]."""

    async def taken():
        environment = ToolEnvironment() if services is None else ToolEnvironment(services)
        await environment.reset(task(tools=tools, **fields), 0)
        began = time.perf_counter()
        try:
            step = await environment.step({"tool_calls": [called(*call) for call in calls]})
        finally:
            took = time.perf_counter() - began
            await environment.close()
        return [message["content"] for message in step.observation.messages], took

    return asyncio.run(taken())


def waits(*seconds, tool="wait"):
    return [(tool, {"name": str(number), "seconds": each}) for number, each in enumerate(seconds)]


def test_calls_of_one_answer_run_at_a_time_and_their_results_keep_the_order():
    shown, _ = step(("waiting",), *waits(0.06, 0.04, 0.05, 0.02))
    assert shown == list("0123")
    assert LOG[:4] == [f"{name} begins" for name in "0123"] and LOG[4] == "3 ends"
    times = (step(("waiting",), *waits(0.1, 0.1, 0.1, 0.1))[1] for _ in range(5))  # another test may hold the cores
    assert any(seconds <= 0.15 for seconds in times)


def test_calls_that_share_state_keep_their_order_beside_others():
    own = waits(0.02, 0.0, tool="wait_here")
    shown, _ = step(("waiting", "oneatatime"), own[0], ("wait", {"name": "x", "seconds": 0.01}), own[1])
    assert shown == ["0", "x", "1"]
    assert LOG == ["0 begins", "x begins", "x ends", "0 ends", "1 begins", "1 ends"]


def test_the_budget_of_steps_is_counted_before_any_call_begins():
    shown, _ = step(("waiting",), *waits(0.02, 0.0, 0.0), budget=Budget(steps=2))
    assert shown[:2] == ["0", "1"] and "budget of steps" in shown[2]
    assert "2 begins" not in LOG


def test_a_machine_that_fails_ends_the_other_calls_before_anybody_hears_of_it():
    with pytest.raises(SandboxError, match="it is gone"):
        step(("waiting", "oneatatime"), *waits(9.0), ("fail", {"seconds": 0.01}), *waits(9.0, 9.0, tool="wait_here"))
    assert LOG == ["0 begins", "0 begins", "0 is cancelled", "0 is cancelled"]


def test_toolsets_say_whether_their_calls_may_overlap():
    count = 0

    def closing() -> int:
        """Counts."""
        return count

    assert all(
        made.concurrent for made in (waiting(), calculator(), DelegateTools(), toolsets.make("mcp url=http://x"))
    )
    made = (StoreTools(), ShellTool(), EditTool(), PythonTool(), FunctionTools([closing]), OneAtATime())
    assert not any(each.concurrent for each in made)
    assert not any(toolsets.make(text).concurrent for text in ("mcp command=x", "mcp url=http://x ordered=true"))


@pytest.mark.parametrize("delays", [{"a": 0.0, "b": 0.02}, {"a": 0.02, "b": 0.0}])
def test_sub_episodes_have_the_numbers_of_their_calls_however_long_these_take(delays, monkeypatch):
    monkeypatch.setattr(Researcher, "delays", delays)
    paths = {}

    async def run(spawned):
        paths[spawned.task.id] = spawned.path
        await asyncio.sleep(delays[spawned.task.id[0]])
        return Trajectory(spawned.task.id, "d", KEY.place, status="finished")

    spawner = Spawner(run)

    async def spawn(task, kind="", role="", **options):
        return (await spawner.spawn(task, kind, role))[1]

    services = Services(spawn=spawn)
    shown, _ = step(("researcher", "waiting"), *[("research", {"name": name}) for name in "ab"], services=services)
    assert shown == ["a", "b"]
    assert paths == {"a0": (0,), "b0": (1,), "a1": (2,), "b1": (3,)}


def test_an_episode_with_two_calls_in_an_answer_is_recorded_in_their_order():
    def say(text):
        return "!delegate x\n!delegate y" if text == "<a+b=>" else "done"

    ended = []

    async def run(spawned):
        await asyncio.sleep(0.02 if spawned.task.id == "t/1" else 0)
        ended.append(spawned.task.id)
        return Trajectory(spawned.task.id, "d", KEY.place, status="truncated")

    async def whole():
        sampling = Sampling(max_tokens=60, temperature=1.0)
        options = {"key": KEY, "seed": 7, "sampling": sampling, "spawner": Spawner(run)}
        return await run_episode(
            task(tools=("delegate",)), compact_client(say), COMPACT, BYTES, ToolEnvironment(), **options
        )

    result = asyncio.run(whole())
    assert ended == ["t/2", "t/1"]
    assert [link["task"] for link in result.metadata[SPAWNED].values()] == ["t/1", "t/2"]
    with pytest.raises(UserError, match="no option"):
        toolsets.make("delegate concurrent=false")
