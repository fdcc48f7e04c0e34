"""Small worlds for models of characters."""

import asyncio
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.scaffolds.scripted import play, said
from k2jax.errors import UserError
from k2jax.tasks.worlds.dataset import solve
from k2jax.tasks.worlds.dialogue import WorldEnvironment
from k2jax.tasks.worlds.goals import EXPECTED, WorldVerifier
from k2jax.tasks.worlds.world_tools import WORLD


@pytest.fixture(scope="module")
def tasks():
    return load_tasks("worlds", ("size=small", "count=40", "worlds=40"), "test")


def score(task, policy):
    async def episode():
        trajectory = await play(task, WorldEnvironment(), policy)
        return trajectory, (await WorldVerifier().score(task, trajectory, None)).value

    return asyncio.run(episode())


def in_compact_form(change=lambda name, words: (name, words)):
    """The oracle's calls as a model of characters writes them: a name and words."""

    def policy(task, messages):
        message = solve(task, messages)
        if not message.get("tool_calls"):
            return message
        function = message["tool_calls"][0]["function"]
        words = [str(value) for value in json.loads(function["arguments"]).values()]
        name, words = change(function["name"], words)
        call = {"name": name, "arguments": json.dumps(" ".join(words))}
        return said("") | {"tool_calls": [{"id": "0", "type": "function", "function": call}]}

    return policy


def test_all_that_a_solution_needs_stands_in_the_prompt_and_one_call_solves_it(tasks):
    kinds = set()
    for task in tasks:
        (name, arguments), *others = task.metadata[EXPECTED]["calls"]
        system, user = (message["content"] for message in task.instruction)
        assert not others and name in system and all(str(value) in user for value in arguments.values())
        assert len(system) + len(user) < 100 and len(system.splitlines()) == 3
        trajectory, value = score(task, in_compact_form())
        assert value == 1.0 and [node.message["role"] for node in trajectory.nodes][-2:] == ["tool", "assistant"]
        kinds.add(name.split("_")[0])
    assert kinds == {"set", "read", "new", "drop", "copy"}


def test_another_tool_another_argument_and_an_empty_claim_earn_nothing(tasks):
    for task in tasks:
        names = [tool["name"] for tool in task.metadata[WORLD]["spec"]["tools"]]
        assert score(task, lambda task, messages: said("It is done"))[1] == 0.0

        def other(name, words, names=names):
            return next(one for one in names if one != name), words

        def wrong(name, words):
            return name, [*words[:-1], words[-1][:-1] + ("1" if words[-1][-1] != "1" else "2")]

        if not task.metadata[EXPECTED]["told"]:  # the oracle tells what it knows, whatever the tools answer
            assert score(task, in_compact_form(other))[1] == 0.0
            assert score(task, in_compact_form(wrong))[1] == 0.0


def test_names_of_other_worlds_are_unseen(tasks):
    train = load_tasks("worlds", ("size=small", "count=200", "worlds=200"))
    names = [{t["name"] for task in some for t in task.metadata[WORLD]["spec"]["tools"]} for some in (train, tasks)]
    assert len(names[1] & names[0]) <= 0.05 * len(names[1])


def test_a_size_is_of_drawn_worlds(tmp_path):
    with pytest.raises(UserError, match="size is of drawn worlds"):
        load_tasks("worlds", (f"path={tmp_path}", "size=small"))
