"""An episode that a budget has ended is judged by what it has left, as the harnesses of benchmarks do."""

import asyncio
import dataclasses
import json

import pytest

from k2jax.agents import Budget, Observation, Step, Task
from k2jax.agents.environment import OUTCOME, Environment
from k2jax.agents.environments.remote import RemoteEnvironment, remote
from k2jax.agents.environments.serve_offer import Offer
from k2jax.agents.errors import EnvironmentFailedError
from k2jax.agents.registry import environments
from k2jax.agents.scaffolds.scripted import play, said
from k2jax.agents.scorer import Scorer
from k2jax.client import PromptTooLongError, ScriptedClient
from k2jax.config.schema import TaskConfig
from k2jax.errors import UserError
from k2jax.text import configured_chat
from tests.agents.remote_server import served
from tests.agents.test_rollout import BYTES, TASK, episode, reply

COMPACT = configured_chat(BYTES, "compact")


class Growing(Environment):
    """Keeps every answer, never ends, and breaks down as often as it is told to when it is asked what is left."""

    def __init__(self, services=None, failures=0):
        super().__init__()
        self.kept, self.failures, self.collected = [], failures, 0

    async def reset(self, task, seed):
        self.kept = []
        return Observation(task.instruction)

    async def step(self, action):
        self.kept.append(action["content"])
        return Step(Observation(({"role": "user", "content": "more"},)))

    async def collect(self):
        self.collected += 1
        if self.failures:
            self.failures -= 1
            raise EnvironmentFailedError("the sandbox is gone")
        return {"left": list(self.kept)}


def too_long(prompt, sampling):
    if len(prompt) > 20:
        raise PromptTooLongError("too long")
    return reply("3")(prompt, sampling)


CUTS = {
    "steps": (reply("3"), {"budget": Budget(steps=2)}, ["3", "3"]),
    "tokens": (reply("3"), {"budget": Budget(tokens=4)}, ["3", "3"]),
    "an answer": (reply("3" * 30), {}, []),
    "the longest sequence": (too_long, {}, ["3", "3"]),
}


@pytest.mark.parametrize("cut", CUTS)
def test_what_an_episode_has_left_is_collected_whatever_has_ended_it(cut):
    says, budget, left = CUTS[cut]
    ended = episode(ScriptedClient(says), dataclasses.replace(TASK, **budget), Growing(), chat=COMPACT)
    assert (ended.status, ended.metadata[OUTCOME]) == ("truncated", {"left": left})


@pytest.mark.parametrize("cut", CUTS)
def test_an_environment_that_breaks_down_then_is_rebuilt_and_nothing_more_is_sampled(cut):
    says, budget, left = CUTS[cut]
    task, place = dataclasses.replace(TASK, **budget), Growing(failures=2)
    ended = episode(ScriptedClient(says), task, place, chat=COMPACT)
    whole = episode(ScriptedClient(says), task, Growing(), chat=COMPACT)
    assert (ended.status, ended.metadata[OUTCOME], place.collected) == ("truncated", {"left": left}, 3)
    assert [node.tokens.tolist() for node in ended.nodes] == [node.tokens.tolist() for node in whole.nodes]
    gone = episode(ScriptedClient(says), task, Growing(failures=3), chat=COMPACT)
    assert gone.status == "masked" and "sandbox is gone" in gone.error


def test_a_class_of_tasks_can_say_that_such_episodes_are_not_judged():
    class Refusing(Scorer):
        async def _verdict(self, *arguments):
            raise AssertionError("a verifier was asked")

    task = dataclasses.replace(TASK, budget=Budget(steps=1)).with_choices(TaskConfig(judge_truncated=False))
    place = Growing()
    ended = episode(ScriptedClient(reply("3")), task, place, chat=COMPACT)
    assert ended.status == "truncated" and not place.collected and OUTCOME not in ended.metadata
    reward = asyncio.run(Refusing(pool=None).score(task, ended))
    assert (reward.value, reward.info) == (0.0, {"cut": True})


def test_checksums_of_tasks_stay_and_the_choice_travels_with_a_task():
    assert "judge_truncated" not in json.loads(TASK.to_json())
    unjudged = dataclasses.replace(TASK, judge_truncated=False)
    assert Task.from_json(TASK.to_json()) == TASK and Task.from_json(unjudged.to_json()) == unjudged
    with pytest.raises(UserError, match="judge_truncated cannot be read"):
        Task.from_json(unjudged.to_json().replace('"judge_truncated": false', '"judge_truncated": 0'))


async def test_an_environment_on_a_server_is_asked_too_and_scripted_policies_are_cut_as_models_are(monkeypatch):
    monkeypatch.setitem(environments.added, "growing", "tests.agents.test_truncated:Growing")
    task = dataclasses.replace(TASK, environment="growing", budget=Budget(steps=2))
    async with served(Offer(("growing",))) as (url, _):
        far = await play(remote(task, url), RemoteEnvironment(), lambda task, messages: said("3"))
    near = await play(task, Growing(), lambda task, messages: said("3"))
    assert (far.status, far.metadata[OUTCOME]) == (near.status, near.metadata[OUTCOME])
    assert near.metadata[OUTCOME] == {"left": ["3", "3"]}
