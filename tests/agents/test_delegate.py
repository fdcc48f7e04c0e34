"""Sub-agents as tools: an agent asks another that has its other tools, and goes on with the answer."""

import asyncio

import pytest

from k2jax.agents.environment import Services
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.errors import EnvironmentFailedError, SubEpisodeError
from k2jax.agents.roles import RoleClient, Roles
from k2jax.agents.spawning import Spawner
from k2jax.client import Sampling
from k2jax.errors import InfrastructureError, UserError
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import SPAWNED
from tests.agents.tool_episodes import BYTES, COMPACT, KEY, compact_client, episode, task


class Starter:
    """Runs sub-episodes where they are started."""

    def __init__(self, client, sampling, **options):
        self.client, self.sampling, self.tasks, self.roles = client, sampling, [], []
        self.spawner = Spawner(self.run, **options)

    async def run(self, spawned):
        self.tasks.append(spawned.task)
        self.roles.append(spawned.role)
        shared = {"key": KEY, "seed": len(self.tasks), "sampling": self.sampling, "spawner": spawned.spawner}
        return await run_episode(spawned.task, self.client, COMPACT, BYTES, ToolEnvironment(), **shared)


def say(text):
    """The agent asks for both sums; a sub-agent computes, and asks one more where it may."""
    if text.startswith("<a+b"):
        return {0: "!delegate sum of 12+30", 1: "!delegate sum of 1+2"}.get(text.count("!"), "42 and 3")
    if text.startswith("<sum of"):
        words = text.split(">")[0].removeprefix("<sum of ")
        return f"!calc {words}" if "!" not in text else text.split("<")[-1].removesuffix(">")
    return "nothing"


def test_a_sub_agent_has_the_other_tools_and_its_answer_is_the_result():
    client = compact_client(say)
    starter = Starter(client, Sampling(max_tokens=60))
    result = episode(client, task(tools=("calculator", "delegate depth=2 steps=3")), spawner=starter.spawner)
    assert (result.status, result.answer) == ("finished", "42 and 3")
    assert [node.message["content"] for node in result.nodes if node.message["role"] == "tool"] == ["42", "3"]
    assert [each.id for each in starter.tasks] == ["t/1", "t/2"]
    for each in starter.tasks:
        assert each.tools == ("calculator", "delegate depth=1 steps=3 most=8")
        assert (each.verifier, each.budget.steps) == ("", 3)


def test_more_sub_agents_than_may_be_and_one_without_an_answer_are_messages_to_the_model():
    def say_much(text):
        if text.startswith("<a+b"):
            return "!delegate sum of 1+1" if text.count("!") < 2 else "done"
        return "!calc 1+1"  # until its budget ends

    client = compact_client(say_much)
    starter = Starter(client, Sampling(max_tokens=60))
    result = episode(client, task(tools=("calculator", "delegate steps=2 most=1")), spawner=starter.spawner)
    first, second = (node.message["content"] for node in result.nodes if node.message["role"] == "tool")
    assert "used up its budget" in first and "1 sub-agents already" in second
    assert starter.tasks[0].tools == ("calculator",), "at the last level a sub-agent works alone"


def test_a_sub_agent_that_the_infrastructure_failed_is_no_message_but_masks_the_episode():
    async def broken(spawned):
        raise SubEpisodeError("three workers were lost")

    result = episode(compact_client(say), task(tools=("delegate",)), spawner=Spawner(broken))
    assert result.status == "masked" and "three workers were lost" in result.error
    assert issubclass(SubEpisodeError, InfrastructureError)


def test_an_environment_that_is_rebuilt_finds_the_sub_episodes_that_have_ended():
    class Fragile(ToolEnvironment):
        """Fails once, after the second sub-agent's answer."""

        def __init__(self):
            super().__init__()
            self.failures = [True]

        async def step(self, action):
            step = await super().step(action)
            if step.observation.messages and step.observation.messages[0]["content"] == "3" and self.failures:
                self.failures.pop()
                raise EnvironmentFailedError("gone")
            return step

    starter = Starter(compact_client(say), Sampling(max_tokens=60))
    wanted = ("calculator", "delegate")
    environment = Fragile()
    result = episode(starter.client, task(tools=wanted), environment, spawner=starter.spawner)
    assert (result.status, result.answer) == ("finished", "42 and 3") and not environment.failures
    assert [each.id for each in starter.tasks] == ["t/1", "t/2"]
    links = result.metadata[SPAWNED]
    assert {number: link["task"] for number, link in links.items()} == {"0": "t/1", "1": "t/2"}


def test_no_two_sub_episodes_have_the_same_random_numbers_whatever_failed_before_the_episode_paused():
    paths, failures = [], [True]

    async def run(spawned):
        paths.append(spawned.path)
        if failures:
            failures.pop()
            raise SubEpisodeError("gone")
        return Trajectory("t/1", "d", (1, 0, 0), status="finished")

    async def episodes():
        first, later = Spawner(run), Spawner(run)
        first.begin()
        with pytest.raises(SubEpisodeError):
            await first.spawn(task())
        first.begin()
        later.resume(dict([await first.spawn(task())]))
        later.begin()
        for _ in range(2):
            await later.spawn(task())

    asyncio.run(episodes())
    assert len(paths) == 3 == len(set(paths)) and paths[0] == (0,) and paths[2] == (1,)


def test_sub_agents_of_a_role_are_the_role_at_every_level_and_one_that_is_not_there_is_one_line():
    def say_deep(text):
        return "!delegate deeper" if "!" not in text else "done"

    def delegating(tools, environment=None, **options):
        starter = Starter(compact_client(say_deep), Sampling(max_tokens=60), **options)
        return episode(starter.client, task(tools=(tools,)), environment, spawner=starter.spawner), starter

    roles = Roles({name: RoleClient(None, COMPACT, BYTES) for name in ("policy", "helper")})
    there = ToolEnvironment(Services(client_of=roles.client_of))
    result, starter = delegating("delegate depth=2 role=helper", there, roles=roles.names)
    assert (result.status, starter.roles) == ("finished", ["helper", "helper"])
    for tools, environment, words in (
        ("delegate role=helpr", there, "no role 'helpr' answers here; .*did you mean 'helper'"),
        ("delegate role=helper", None, "needs a rollout that has roles"),
        ("delegate role=helper", there, "no role 'helper' answers here"),  # of a collection, which has none
    ):
        with pytest.raises(UserError, match=words):
            delegating(tools, environment)


def test_where_nothing_runs_sub_episodes_that_is_one_line():
    with pytest.raises(UserError, match="nothing here runs"):
        episode(compact_client(say), task(tools=("delegate",)))
    with pytest.raises(UserError, match="needs a rollout"):
        asyncio.run(ToolEnvironment().reset(task(tools=("delegate",)), 0))
