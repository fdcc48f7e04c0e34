"""Roles beside the policy: other weights in the same iteration, with bits of their own, and never trained on."""

import asyncio
import random
import shutil

import numpy as np
import pytest

from k2jax.agents.environment import Observation
from k2jax.agents.environments.single_turn import SingleTurn
from k2jax.agents.messages import read_message
from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import environments
from k2jax.agents.task import Task
from k2jax.config import resolve, role
from k2jax.errors import UserError
from k2jax.inference import LockstepClient
from k2jax.inference.loading import load_engine
from k2jax.inference.roles import open_roles, roles_in_lockstep
from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup, reward_terms, training_samples
from k2jax.rl.loop import train
from k2jax.rl.setup import check_config
from k2jax.text import byte_tokenizer
from k2jax.trajectory import Reward
from k2jax.trajectory.steps import ROLE, SPAWNED
from k2jax.trajectory.store import TrajectoryStore
from tests.agents.tool_episodes import BYTES, COMPACT
from tests.rl.role_folders import write_role
from tests.rl.runs import assert_equal_runs
from tests.rl.tiny import register, tiny_config

SIZES = {"slots": 16, "max_length": 80}
LONG = 10
"""Times that a question is repeated, so that a page of the cache holds its beginning for the next one."""


class Judge:
    """A scorer that rewards the length of an answer."""

    async def judge(self, task, trajectory):
        trajectory.reward = Reward(float(len(trajectory.answer)))


class Consulting(SingleTurn):
    """Shows the policy what the role ``helper`` says: as two sub-agents, or where a task begins with a, as a user."""

    async def reset(self, task, seed):
        await asyncio.sleep(0.003 * random.random())
        if task.id.startswith("a"):
            user = self.services.client_of("helper")
            words = (await user.answer([{"role": "user", "content": task.id * LONG}], seed))["content"]
        else:
            parts = [self._part(asked(f"{task.id}{name}", "single_turn")) for name in "xy"]
            words = " ".join([each.answer for each in await asyncio.gather(*parts)])
        return Observation(({"role": "user", "content": f"{task.id} {words}"},))

    async def _part(self, part):
        return await self.services.spawn(part, role="helper")


def asked(name, environment="consulting", verifier="any"):
    messages = ({"role": "user", "content": name * LONG},)
    return Task(name, "letters", messages, verifier if environment == "consulting" else "", environment=environment)


@pytest.fixture(autouse=True)
def consulting():
    environments.add("consulting", "tests.rl.test_roles:Consulting")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints of one architecture."""
    folder = tmp_path_factory.mktemp("roles")
    return write_role(folder / "policy", 1), write_role(folder / "helper", 2)


def config_with(checkpoint, **changes):
    helper = role(checkpoint=checkpoint, max_tokens=5, temperature=0.8, slots=16)
    made = tiny_config()
    made.rl.roles.helper = helper
    made.rl.tasks.low.max_tokens = 6
    made.update_from_flattened_dict(changes)
    register()
    return resolve(made)


def watched(engine):
    """The requests that an engine gets from now on."""
    requests, enqueue = [], engine.enqueue
    engine.enqueue = lambda request: (requests.append(request), enqueue(request))
    return requests


def iteration(folders):
    """Three episodes at once, one of which asks two sub-agents; they, and the requests to the policy and the role."""
    config, policy = config_with(folders[1]), load_engine(folders[0], **SIZES)
    models = open_roles(config, BYTES, mesh=None)
    requests = [watched(engine) for engine in (policy, models["helper"].engine)]
    groups = [
        PromptGroup(place, (1, place), DrawnTask("low", asked(name)), [None] * samples)
        for place, (name, samples) in enumerate({"ab": 2, "bc": 1}.items())
    ]

    async def everything():
        client = LockstepClient(policy)
        roles = roles_in_lockstep(client, COMPACT, BYTES, models)
        await Episodes(config, client, COMPACT, BYTES, Judge(), roles=roles).run(1, groups)

    asyncio.run(asyncio.wait_for(everything(), 100))
    return groups, *(sorted(each, key=lambda request: request.order) for each in requests)


def bits(requests):
    return [(list(each.tokens), np.array(each.logprobs, np.float32).tobytes()) for each in requests]


@pytest.fixture(scope="module")
def ran(folders):
    environments.add("consulting", "tests.rl.test_roles:Consulting")
    return iteration(folders)


def test_a_role_answers_in_the_iteration_with_the_bits_of_its_own_engine_alone(ran, folders):
    groups, policy, helper = ran
    assert len(policy) == 3 and len(helper) == 2 + 2
    alone = load_engine(folders[1], **SIZES)
    again = alone.generate([each.prompt for each in helper], [each.sampling for each in helper])
    assert bits(again) == bits(helper)
    other = load_engine(folders[0], **SIZES).generate([each.prompt for each in helper], helper[0].sampling)
    assert [each.tokens for each in other] != [each.tokens for each in helper]
    assert {(each.sampling.max_tokens, each.sampling.temperature) for each in helper} == {(5, 0.8)}
    for number, one in enumerate(groups[0].trajectories):
        said = read_message(COMPACT, helper[number].tokens)["content"]
        assert one.nodes[0].message["content"] == f"ab {said}" and said


def test_the_same_iteration_has_the_same_bits_whatever_takes_its_time(ran, folders):
    groups, policy, helper = iteration(folders)
    assert (bits(policy), bits(helper)) == (bits(ran[1]), bits(ran[2]))
    assert [each.metadata for each in groups[1].trajectories] == [each.metadata for each in ran[0][1].trajectories]


def test_what_a_role_says_is_never_trained_on(ran):
    groups, policy, _ = ran
    config = config_with("unread")
    for group in groups:
        group.terms = reward_terms(group, config.rl.tasks["low"], {"verifier": 1.0, "overlong": 0.0})
    samples, _ = training_samples(config.rl, groups)
    trained = [tuple(node.tokens[node.mask]) for group in samples for one in group for node in one.trajectory.nodes]
    assert sorted(filter(None, trained)) == sorted(tuple(each.tokens) for each in policy)
    links = [link for one in groups[1].trajectories for link in one.metadata[SPAWNED].values()]
    assert [link[ROLE] for link in links] == ["helper"] * 2
    groups[0].trajectories[0].metadata[ROLE] = "helper"
    with pytest.raises(ValueError, match="helper"):
        training_samples(config.rl, groups)
    del groups[0].trajectories[0].metadata[ROLE]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rl.roles.helper.checkpoint": ""}, "roles.helper.checkpoint is empty"),
        ({"rl.roles.helper.max_tokens": 80}, "roles.helper.max_tokens 80 leaves no room"),
        ({"rl.critic.judge": "role", "rl.tasks.low.judge_weight": 1.0}, "role is '' with rl.critic.judge role"),
        (
            {"rl.critic.role": "helper", "rl.tasks.low.judge_weight": 1.0},
            "role is 'helper' with rl.critic.judge policy",
        ),
        (
            {"rl.critic.judge": "role", "rl.critic.role": "helpr", "rl.tasks.low.judge_weight": 1.0},
            "'helpr' is not in config.rl.roles; did you mean 'helper'",
        ),
    ],
)
def test_a_role_that_cannot_answer_is_one_line(changes, words):
    with pytest.raises(UserError, match=words):
        check_config(config_with("folder", **changes))


def test_the_policy_is_no_frozen_role_and_a_role_has_the_vocabulary_of_the_run(tmp_path):
    made = tiny_config()
    made.rl.roles.policy = role(checkpoint="folder")
    register()
    with pytest.raises(UserError, match="is the model that is trained"):
        check_config(resolve(made))
    other = write_role(tmp_path / "other", 3, byte_tokenizer(["<other>"]))
    with pytest.raises(UserError, match="another vocabulary"):
        open_roles(config_with(other), BYTES, mesh=None)


def test_who_asks_for_a_role_that_is_not_there_is_told_so_in_one_line(folders):
    async def asks(what, token_cap=0):
        client = LockstepClient(load_engine(folders[0], **SIZES))
        environments.add(f"asking_{what}", f"tests.rl.test_roles:AskingFor{what.title()}")
        group = PromptGroup(0, (1, 0), DrawnTask("low", asked("a", f"asking_{what}")), [None])
        config, models = config_with(folders[1]), {}
        if token_cap:
            models = open_roles(config, BYTES, mesh=None)
        roles = roles_in_lockstep(client, COMPACT, BYTES, models)
        await Episodes(config, client, COMPACT, BYTES, Judge(), roles=roles).run(1, [group], token_cap=token_cap)

    with pytest.raises(UserError, match="no role 'helper' answers here"):
        asyncio.run(asks("client"))
    with pytest.raises(UserError, match=r"no role 'polic' answers here.*did you mean 'policy'"):
        asyncio.run(asks("agent"))
    with pytest.raises(UserError, match=r"asks the role .helper., and config\.rl\.rollout\.token_cap"):
        asyncio.run(asks("client", token_cap=4))


class AskingForClient(SingleTurn):
    async def reset(self, task, seed):
        await self.services.client_of("helper").answer([{"role": "user", "content": "a"}], seed)


class AskingForAgent(SingleTurn):
    async def reset(self, task, seed):
        await self.services.spawn(task, role="polic")


@pytest.mark.slow
def test_a_run_with_a_role_goes_on_after_a_resume_as_if_there_had_been_none(folders, tmp_path):
    """The role has another architecture than the policy, and judges beside its other work; its cache rests too."""
    changes = {
        "rl.tasks.low.environment": "consulting",
        "rl.tasks.low.judge_weight": 1.0,
        "rl.critic.judge": "role",
        "rl.critic.role": "helper",
        "rl.critic.format": "compact",
        "rl.critic.max_tokens": 4,
        "rl.rollout.offload_state": True,
        "optimizer.schedule.kind": "constant",
        "optimizer.schedule.warmup_steps": 1,
        "checkpoint.every": 1,
    }
    assert train(config_with(folders[1], **changes, **{"train.steps": 3}), tmp_path / "whole") == 0
    assert train(config_with(folders[1], **changes, **{"train.steps": 2}), tmp_path / "half") == 0
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "2")
    assert train(config_with(folders[1], **changes, **{"train.steps": 3}), tmp_path / "half") == 0
    assert_equal_runs(tmp_path / "half", tmp_path / "whole")
    stored = [one for step in (1, 2, 3) for one in TrajectoryStore(tmp_path / "half" / "trajectories").read(step)]
    assert any(SPAWNED in one.metadata for one in stored)
    with pytest.raises(UserError, match="checkpoint of the role helper"):
        train(config_with(folders[0], **changes, **{"train.steps": 3}), tmp_path / "half")
