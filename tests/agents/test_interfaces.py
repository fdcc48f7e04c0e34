"""What a user's environment, toolset and verifier have to say for themselves, and what they inherit."""

import asyncio

import pytest

from k2jax.agents import Environment, Task
from k2jax.agents.environment import EnvironmentMaker, Observation, Step
from k2jax.agents.environments.serve_offer import Offer
from k2jax.agents.registry import environments, toolsets
from k2jax.agents.sandbox import SandboxSpec
from k2jax.agents.toolsets import Toolset
from k2jax.agents.toolsets.types import declared, parameters_of
from k2jax.errors import UserError
from tests.agents.tool_episodes import compact_client, episode, results

TASK = Task("t", "d", ({"role": "user", "content": "hi"},), "", environment="bare")


class Bare(Environment):
    """No more than an environment must have."""

    async def reset(self, task, seed):
        return Observation(task.instruction)

    async def step(self, action):
        return Step(Observation(), terminated=True, info={"spawns": self.services.spawn is not None})


class Duck:
    """As ``Bare``, of no class of ours."""

    def __init__(self, services):
        pass


class Greeting(Toolset):
    """No more than a toolset must have."""

    tools = (declared("greet", "Greets.", parameters_of({}, ())),)

    async def call(self, name, arguments):
        return "hello"


class Choosy(Greeting):
    """A toolset whose task chooses something of this machine."""

    @staticmethod
    def options_of(task):
        return [f"folder={task.metadata['folder']}"]


@pytest.fixture(autouse=True)
def added(monkeypatch):
    for registry, made in ((environments, Bare), (environments, Duck), (toolsets, Greeting), (toolsets, Choosy)):
        monkeypatch.setitem(registry.added, made.__name__.lower(), f"{__name__}:{made.__name__}")


def test_an_environment_needs_reset_and_step_and_has_the_rest_from_its_class():
    made = EnvironmentMaker(repositories="/srv/repositories").make(TASK)
    assert (made.tools, made.folder, made.options_of(TASK)) == ((), "", [])
    assert made.services.repositories == "/srv/repositories"
    trajectory = episode(compact_client(lambda text: "yes"), TASK, made)
    assert trajectory.status == "finished" and trajectory.metadata["outcome"] == {"spawns": True}


def test_an_environment_of_another_class_is_refused_by_name():
    with pytest.raises(UserError, match=r"'duck' is a Duck; derive its class from k2jax.agents.Environment"):
        EnvironmentMaker().make(Task("t", "d", (), "", environment="duck"))


def test_an_environment_without_a_folder_is_no_place_for_a_black_box_agent():
    with pytest.raises(UserError, match="'bare' of the task 't' has no folder in which an agent could work"):
        asyncio.run(Bare().open_workspace(TASK, SandboxSpec()))
    assert asyncio.run(Bare().collect()) == {}


def test_a_toolset_needs_tools_and_call_and_has_the_rest_from_its_class():
    assert results(("greeting",), ("greet", {})) == ["hello"]


def test_a_server_asks_its_operator_for_what_a_task_chooses_of_a_toolset():
    task = Task("t", "d", (), "", environment="bare", tools=("choosy",), metadata={"folder": "/etc"})
    with pytest.raises(UserError, match="does not offer the toolset 'choosy folder=/etc'"):
        Offer(["bare"], ["choosy"]).check(task)
    Offer(["bare"], ["choosy folder=/etc"]).check(task)
