"""Environments of the package verifiers as ours: its rubric's rewards, every sampled token recorded, typed failures.

The tests marked external need the package (``pip install 'verifiers>=0.1.14,<0.4'`` in an environment of its own,
because it takes another version of the package mcp); the others run on a module of its shape.
"""

import asyncio
import itertools
import json
from pathlib import Path
import sys

import numpy as np
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.environment import OUTCOME
from k2jax.agents.scripted import called, play, play_actions, said
from k2jax.client import ScriptedClient
from k2jax.errors import UserError
from k2jax.tasks.verifiers import package as verifiers_package
from k2jax.tasks.verifiers.dataset import RubricReward
from k2jax.tasks.verifiers.environment import VerifiersEnvironment, _client_class
from tests.agents.tool_episodes import BYTES, compact_client, episode
from tests.tasks import verifiers_shape


@pytest.fixture
def shape(monkeypatch):
    """A module of the package's shape in its place."""
    monkeypatch.setitem(sys.modules, "verifiers", verifiers_shape)
    monkeypatch.setattr(verifiers_shape, "closed", [])
    yield from _fresh()


def _fresh():
    for cached in (verifiers_package.load_environment, _client_class):
        cached.cache_clear()
    yield
    for cached in (verifiers_package.load_environment, _client_class):
        cached.cache_clear()


def tasks_of(kind, name="sums", split="train", **options):
    given = [f"{key}={value}" for key, value in options.items()]
    return load_tasks("verifiers", (f"environment={name}", f"arguments={json.dumps({'kind': kind})}", *given), split)


def answer(task):
    return task.metadata["verifiers"]["input"]["answer"]


def oracle(task, messages):
    return play_actions([called("add", first=1), said(answer(task))], messages)


def score(task, trajectory):
    return asyncio.run(RubricReward().score(task, trajectory, None)).value


def test_an_oracle_earns_what_the_rubric_gives_and_a_null_policy_0(check, shape):
    solved = check(tasks_of("tools", count=2), oracle)
    assert solved[0].reward.parts == {"exact": 1.0}
    assert [node.message for node in solved[1].nodes] == [
        {"role": "user", "content": "1+1="},
        called("add", first=1),
        {"role": "tool", "tool_call_id": "0", "content": "2", "name": "add"},
        said("2"),
    ]
    assert verifiers_shape.closed == ["tools"] * 4


def test_every_sampled_token_is_in_the_tree_with_its_own_log_probability(shape):
    (task,) = tasks_of("tools", count=1)
    client = compact_client(lambda text: " 0" if "!add" in text else "let me see\n!add")
    trajectory = episode(client, task, VerifiersEnvironment())
    assert trajectory.status == "finished" and score(task, trajectory) == 1.0
    sampled = [(index, node) for index, node in enumerate(trajectory.nodes) if node.mask.any()]
    assert [BYTES.decode(node.tokens[:-1].tolist()) for _, node in sampled] == ["let me see\n!add", " 0"]
    for (index, node), (prompt, _) in zip(sampled, client.calls, strict=True):
        assert list(prompt) == trajectory.path_tokens(node.parent).tolist()
        context, tokens = list(prompt), node.tokens.tolist()
        expected = [ScriptedClient.logprob([*context, *tokens[:i]], token) for i, token in enumerate(tokens)]
        assert np.array_equal(node.logprobs, np.float32(expected)) and node.mask.all(), index


def test_an_episode_in_pieces_equals_one_at_once(shape):
    (task,) = tasks_of("tools", count=1)
    client = compact_client(lambda text: "0" if "!add" in text else "!add")
    whole, pieces = episode(client, task, VerifiersEnvironment()), None
    while pieces is None or pieces.status == "unfinished":
        pieces = episode(client, task, VerifiersEnvironment(), token_cap=3, trajectory=pieces)
    assert [n.tokens.tolist() for n in pieces.nodes] == [n.tokens.tolist() for n in whole.nodes]
    assert pieces.metadata[OUTCOME] == whole.metadata[OUTCOME]


def test_an_episode_that_is_cut_earns_nothing_and_frees_what_it_held(shape):
    (task,) = tasks_of("tools", count=1)
    trajectory = episode(compact_client(lambda text: "0" * 99), task, VerifiersEnvironment())
    assert (trajectory.status, score(task, trajectory)) == ("truncated", 0.0)

    async def freed():
        environment = VerifiersEnvironment()
        await environment.reset(task, 0)
        before = len(verifiers_shape.closed)
        await environment.close()
        return len(verifiers_shape.closed) - before

    assert asyncio.run(freed()) == 1


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("broken", "oops"), ("silent", "no machine"), ("judged", "no verdict"), ("infinite", "no finite numbers")],
)
def test_what_fails_is_masked_and_no_reward_of_0(shape, kind, reason):
    (task,) = tasks_of(kind, count=1)
    trajectory = asyncio.run(play(task, VerifiersEnvironment(), oracle))
    assert trajectory.status == "masked" and "EnvironmentFailedError" in trajectory.error
    assert reason in trajectory.error


def test_a_reward_function_that_an_answer_confuses_gives_0_as_in_the_package(shape):
    (task,) = tasks_of("careless", count=1)
    trajectory = asyncio.run(play(task, VerifiersEnvironment(), lambda task, messages: said("none")))
    assert (trajectory.status, trajectory.metadata[OUTCOME]["reward"]) == ("finished", 0.0)


@pytest.mark.parametrize("kind", ["forgetful", "new tools"])
def test_an_environment_that_changes_what_was_said_is_refused(shape, kind):
    (task,) = tasks_of(kind, count=1)
    with pytest.raises(UserError, match="what was said before"):
        asyncio.run(play(task, VerifiersEnvironment(), oracle))
    assert verifiers_shape.closed == [kind]


def test_held_out_rows_are_the_environments_own_or_a_tenth(shape):
    answers = {split: [int(answer(task)) for task in tasks_of("divided", split=split)] for split in ("train", "test")}
    assert answers == {"train": list(range(0, 80, 2)), "test": list(range(80, 280, 2))}
    for kind, first, count in (("tools", 0, 40), ("evaluation", 80, 100)):
        train, test = ({int(answer(task)) for task in tasks_of(kind, split=split)} for split in ("train", "test"))
        assert train | test == set(range(first, first + 2 * count, 2)) and not train & test and len(train) > len(test)


def test_mistakes_are_told_in_one_line(shape, monkeypatch):
    for options, message in (
        ({"kind": "tools", "name": "products"}, "cannot be loaded: .*products"),
        ({"kind": "group"}, "judges the answers to a prompt together"),
    ):
        with pytest.raises(UserError, match=message):
            tasks_of(**options)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tasks("verifiers", ("environment=sums", "arguments={kind: tools}"))
    monkeypatch.setitem(sys.modules, "verifiers", None)
    verifiers_package.load_environment.cache_clear()
    with pytest.raises(UserError, match=r"k2jax\[verifiers\]"):
        tasks_of("tools")


@pytest.fixture
def hub(monkeypatch):
    """The package itself, with small environments of its kinds."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "hub")
    yield from _fresh()


def search(messages):
    """The next guess between 1 and 9."""
    low, high = 1, 9
    for before, after in itertools.pairwise(messages):
        if after["content"] == "higher":
            low = int(before["content"]) + 1
        elif after["content"] == "lower":
            high = int(before["content"]) - 1
    return said(str((low + high) // 2))


POLICIES = {
    "single": lambda task, messages: said(answer(task)),
    "multi": lambda task, messages: search(messages),
    "tools": lambda task, messages: play_actions([called("add", first=2, second=3), said("5")], messages),
    "stateful": lambda task, messages: play_actions([called("put", value="tea"), said("done")], messages),
}


@pytest.mark.external
@pytest.mark.parametrize("kind", POLICIES)
def test_the_packages_own_environments_give_an_oracle_1_and_a_null_policy_0(check, hub, kind):
    tasks = [task for split in ("train", "test") for task in both(kind, split)]
    check(tasks, POLICIES[kind])


def both(kind, split):
    """Tasks of a split, none where all rows are in the other one."""
    try:
        return tasks_of(kind, "k2jax-hub-examples", split, count=3)
    except UserError:
        return []


@pytest.mark.external
def test_the_packages_judges_and_odd_environments_are_told_apart(hub):
    (judged, *_), (careless, *_), (forgetful, *_) = (
        both(kind, "train") or both(kind, "test") for kind in ("judged", "careless", "forgetful")
    )
    assert asyncio.run(play(judged, VerifiersEnvironment(), POLICIES["single"])).status == "masked"
    odd = asyncio.run(play(careless, VerifiersEnvironment(), lambda task, messages: said("none")))
    assert (odd.status, odd.metadata[OUTCOME]["reward"]) == ("finished", 0.0)
    with pytest.raises(UserError, match="what was said before"):
        asyncio.run(play(forgetful, VerifiersEnvironment(), lambda task, messages: said("1")))
    with pytest.raises(UserError, match="together"):
        tasks_of("group", "k2jax-hub-examples")
