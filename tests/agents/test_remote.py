"""Environments of other processes: the same episodes as here, and typed errors whatever the server or the line does."""

import asyncio
import dataclasses

import pytest

from k2jax.agents import Observation, Step
from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import Environment, EnvironmentMaker
from k2jax.agents.environments.remote import RemoteEnvironment, remote
from k2jax.agents.environments.remote_messages import read_step, write_step
from k2jax.agents.environments.serve import EnvironmentServer, serving
from k2jax.agents.environments.serve_offer import Offer
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.registry import environments, oracles
from k2jax.agents.scaffolds.scripted import null_policy, play, said
from k2jax.config.schema import TaskConfig
from k2jax.errors import UserError
from tests.agents.remote_server import KEY, listed, served, until


class Wayward(Environment):
    """An environment that does what its task's metadata say, and counts those that are open."""

    open = 0

    async def reset(self, task, seed):
        type(self).open += 1
        self.does = task.metadata["does"]
        return Observation(task.instruction)

    async def step(self, action):
        if self.does == "sleep":
            await asyncio.sleep(60)
        if self.does == "raise":
            raise ZeroDivisionError("oops")
        if self.does == "flood":
            return Step(Observation(({"role": "user", "content": "x" * (9 << 20)},)))
        return Step(Observation(({"role": "user", "content": "go on"},)), info={"n": 1})

    async def close(self):
        type(self).open -= 1


@pytest.fixture(autouse=True)
def wayward(monkeypatch):
    monkeypatch.setitem(environments.added, "wayward", "tests.agents.test_remote:Wayward")
    monkeypatch.setattr(Wayward, "open", 0)


OFFER = ("wayward",)


def task_at(url, does="", timeout=5.0):
    (task,) = load_tasks("tool_use", ("count=1", "kinds=hop1"))
    task = dataclasses.replace(task, environment="wayward", tools=(), metadata={"does": does})
    return remote(task, url, timeout)


async def test_an_episode_on_a_server_is_the_same_as_here():
    tasks = load_tasks("tool_use", ("count=4",))

    async with served() as (url, server):
        there = [task.with_choices(TaskConfig(components=(f"remote url={url}",))) for task in tasks]
        assert {task.environment for task in there} == {"remote"}
        far = [await play(task, EnvironmentMaker().make(task), oracles.get("tool_use"), 3) for task in there]
        near = [await play(task, EnvironmentMaker().make(task), oracles.get("tool_use"), 3) for task in tasks]
        await until(lambda: server.sessions == 0)
    for one, other in zip(far, near, strict=True):
        assert (one.status, one.answer) == (other.status, other.answer) == ("finished", other.answer)
        assert [node.message for node in one.nodes] == [node.message for node in other.nodes]


async def test_declarations_of_tools_reach_the_model_and_mistakes_of_the_user_stay_his():
    (task,) = load_tasks("tool_use", ("count=1", "kinds=calc1"))

    async with served() as (url, _):
        environment = RemoteEnvironment()
        await environment.reset(remote(task, url), 0)
        names = [tool["function"]["name"] for tool in environment.tools]
        with pytest.raises(UserError, match="no toolset 'calk'"):
            await environment.reset(remote(dataclasses.replace(task, tools=("calk",)), url), 0)
        await environment.close()
        assert names == ["calc"]


@pytest.mark.parametrize(
    ("does", "options", "message"),
    [
        ("raise", {}, "ZeroDivisionError: oops"),
        ("sleep", {"timeout": 0.2}, "no step within 0.2 s"),
        ("flood", {}, "bytes is too long"),
    ],
)
async def test_failures_on_the_server_are_infrastructure_errors_and_its_environment_is_closed(does, options, message):
    async with served(Offer(OFFER), **options) as (url, server):
        episode = await play(task_at(url, does), RemoteEnvironment(), null_policy)
        await until(lambda: server.sessions == 0 and Wayward.open == 0)
    assert (
        episode.status == "masked" and episode.error.startswith("EnvironmentFailedError") and message in episode.error
    )


async def test_a_reply_that_takes_too_long_ends_the_connection():
    async with served(Offer(OFFER), timeout=1.0) as (url, _):
        environment = RemoteEnvironment()
        await environment.reset(task_at(url, "sleep", timeout=0.3), 0)
        with pytest.raises(EnvironmentFailedError, match=r"no reply within 0\.3 s"):
            await environment.step(said(""))
        with pytest.raises(EnvironmentFailedError, match="is closed"):
            await environment.step(said(""))


async def test_a_server_that_is_full_or_gone_is_an_infrastructure_error_and_places_come_free():
    async def use(url, server):
        first, second = RemoteEnvironment(), RemoteEnvironment()
        await first.reset(task_at(url), 0)
        with pytest.raises(EnvironmentFailedError, match="it is full"):
            await second.reset(task_at(url), 0)
        await first.close()
        await until(lambda: server.sessions == 0)
        await second.reset(task_at(url), 0)
        return second, url

    server = EnvironmentServer(EnvironmentMaker(), KEY, Offer(OFFER), limit=1)
    async with serving(server) as url:
        with listed(url):
            environment, url = await use(url, server)
    with pytest.raises(EnvironmentFailedError, match="connection to the environment"):
        await environment.step(said(""))
    with listed(url), pytest.raises(EnvironmentFailedError, match="no environment at"):
        await environment.reset(task_at(url), 0)
    await environment.close()


def test_steps_are_read_as_they_are_written_and_wrong_addresses_refused():
    step = Step(Observation(({"role": "tool", "content": "ü"},)), True, False, {"patch": "x"})
    assert read_step(write_step(step)) == step
    (task,) = load_tasks("tool_use", ("count=1",))
    with pytest.raises(UserError, match="write ws://HOST:PORT"):
        remote(task, "http://localhost")
    with pytest.raises(UserError, match="names no server"):
        asyncio.run(RemoteEnvironment().reset(task, 0))
