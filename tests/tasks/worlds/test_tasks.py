"""Tasks of simulated worlds: their oracle, what is judged, and users who tell things bit by bit."""

import asyncio
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.scaffolds.scripted import called, play, said
from k2jax.errors import UserError
from k2jax.tasks.worlds.dataset import solve
from k2jax.tasks.worlds.dialogue import WorldEnvironment
from k2jax.tasks.worlds.goals import EXPECTED, WorldVerifier
from k2jax.tasks.worlds.users import ScriptedUser, UserSpec


def score(task, policy, seed=0):
    async def episode():
        trajectory = await play(task, WorldEnvironment(), policy, seed)
        return await WorldVerifier().score(task, trajectory, None)

    return asyncio.run(episode())


@pytest.fixture(scope="module")
def tasks():
    return load_tasks("worlds", ("count=12", "worlds=6", "wishes=3"), "test")


def test_the_oracle_solves_every_task_also_where_calls_fail(tasks):
    assert [score(task, solve).value for task in tasks] == [1.0] * len(tasks)
    failing = load_tasks("worlds", ("count=12", "worlds=6", "failures=0.08"), "test")
    values = [score(task, solve, seed).value for seed, task in enumerate(failing)]
    assert sum(values) >= 9  # a call without an answer may have been carried out, which the oracle does not look up


def test_who_does_nothing_says_nothing_or_does_too_much_earns_nothing(tasks):
    for task in tasks:
        assert score(task, lambda task, messages: said("")).value == 0
        calls = task.metadata[EXPECTED]["calls"]

        def silent(task, messages, calls=calls):
            ours = sum(message["role"] == "assistant" for message in messages)
            return called(calls[ours][0], **calls[ours][1]) if ours < len(calls) else said("Done.")

        reward = score(task, silent)
        assert reward.value == 0 and reward.parts["goal"] == 1 and reward.parts["told"] < 1


def test_tasks_of_the_splits_come_from_different_worlds_and_are_the_same_again(tasks):
    train = load_tasks("worlds", ("count=12", "worlds=6", "wishes=3"))
    assert not {task.id.split("/")[0] for task in train} & {task.id.split("/")[0] for task in tasks}
    again = load_tasks("worlds", ("count=12", "worlds=6", "wishes=3"), "test")
    assert [task.to_json() for task in again] == [task.to_json() for task in tasks]


def test_a_file_of_tasks_is_read_and_a_damaged_line_is_named(tasks, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(task.to_json() + "\n" for task in tasks))
    assert [t.to_json() for t in load_tasks("worlds", (f"path={path}",), "all")] == [t.to_json() for t in tasks]
    broken = json.loads(tasks[0].to_json())
    broken["metadata"]["world"]["state"] = {"nowhere": {}}
    path.write_text(tasks[1].to_json() + "\n" + json.dumps(broken) + "\n")
    with pytest.raises(UserError, match=r"line 2 of .*other collections"):
        load_tasks("worlds", (f"path={path}",), "all")


def test_a_user_tells_what_it_is_asked_changes_its_mind_and_leaves():
    spec = UserSpec(
        opening="I want a table.",
        facts=({"about": ["day"], "text": "On Monday."}, {"about": ["many"], "text": "For two."}),
        changes=({"after": 2, "text": "No, make it Tuesday."},),
        closing="Bye.",
    )
    user = ScriptedUser(UserSpec.from_json(json.loads(json.dumps(spec.to_json()))))
    assert user.reply("For how many, please?") == "For two."
    assert user.reply("Anything else?") == "On Monday."
    assert user.reply("It is booked.") == "No, make it Tuesday."
    assert user.reply("It is moved.") == "Bye."
    assert user.reply("Bye.") is None
    assert user.told == ["For two.", "On Monday.", "No, make it Tuesday."]


def test_a_user_is_at_the_end_of_its_patience():
    user = ScriptedUser(
        UserSpec(opening="Help.", facts=tuple({"about": [], "text": "x"} for _ in range(9)), patience=3)
    )
    assert [user.reply("What?") for _ in range(5)] == ["x", "x", "x", None, None]


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"opening": 1},
        {"opening": "a", "facts": [1]},
        {"opening": "a", "x": 1},
        {"opening": "a", "patience": 10**9},
    ],
)
def test_what_is_no_user_is_refused(values):
    with pytest.raises(UserError, match="a simulated user cannot be read"):
        UserSpec.from_json(values)
