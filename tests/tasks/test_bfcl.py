"""Simulated APIs over several turns: the reference's calls earn 1, and other states or unseen results 0.

The tests marked external need the package ``bfcl-eval`` (``pip install --no-deps bfcl-eval``, and ``mpmath``).
"""

import asyncio
import dataclasses
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import apis, oracles
from k2jax.agents.scripted import called_all, play_actions, said
from k2jax.agents.toolsets.types import Workplace
from k2jax.errors import UserError
from k2jax.tasks.bfcl.simulated_apis import SimulatedAPIs, read_call

RECORD = {
    "id": "lamp_0",
    "question": [
        [{"role": "user", "content": "Switch the lamp on at level 5."}],
        [{"role": "user", "content": "Which level is it?"}],
        [{"role": "user", "content": "Thanks!"}],
    ],
    "initial_config": {"Lamp": {"level": 2}},
    "ground_truth": [["switch(on=True)", "dim(5)"], ["look()"], []],
    "classes": ["Lamp"],
}
ON, DIM, LOOK = ("switch", {"on": True}), ("dim", {"level": 5}), ("look", {})


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setitem(apis.added, "Lamp", "tests.agents.simulated_lamp:Lamp")


@pytest.fixture
def lamp(tmp_path):
    path = tmp_path / "lamp.jsonl"
    path.write_text(json.dumps(RECORD))
    (task,) = load_tasks("bfcl", (f"path={path}",))
    return task


def test_the_references_calls_earn_1_and_the_null_policy_0(check, lamp):
    solved = check([lamp], oracles.get("bfcl"))
    assert [n.message["content"] for n in solved[0].nodes if n.message["role"] == "user"] == [
        turn[0]["content"] for turn in RECORD["question"]
    ]


CASES = (
    ([[DIM, ON], [LOOK], []], 1.0, []),
    ([[("dim", {"level": 99}), ON, DIM], [LOOK, LOOK], [LOOK]], 1.0, []),
    ([[ON], [DIM, LOOK], []], 0.0, [0]),
    ([[ON, DIM], [], [LOOK]], 0.0, [1]),
    ([[ON, DIM, ("switch", {"on": False})], [LOOK], []], 0.0, [0, 1]),
    ([[ON, ("dim", {"level": "5"})], [LOOK], []], 0.0, [0, 1]),
)


def test_the_state_after_every_turn_and_the_results_count(play, lamp):
    def policy(task, messages):
        turns, _, _ = CASES[int(task.id)]
        actions = [action for calls in turns for action in ([called_all(calls)] if calls else []) + [said("done")]]
        return play_actions(actions, messages)

    episodes = play([dataclasses.replace(lamp, id=str(number)) for number in range(len(CASES))], policy)
    for (_, value, wrong), episode in zip(CASES, episodes, strict=True):
        assert (episode.status, episode.reward.value) == ("finished", value)
        assert [part["turn"] for part in episode.reward.info["wrong"]] == wrong


def test_calls_are_read_as_python_writes_them_and_nothing_else(lamp):
    tools = lamp.metadata["apis"]["tools"]
    assert read_call("dim(5)", tools) == read_call(" dim(level=5)", tools) == ("dim", {"level": 5})
    for text in ("dim(x)", "dim", "paint('red')", "dim(5", "lamp.dim(5)"):
        with pytest.raises(ValueError, match=r"no call|malformed"):
            read_call(text, tools)


def test_the_leaderboards_tasks_are_for_evaluation_and_wrong_records_refused(tmp_path):
    with pytest.raises(UserError, match="for evaluation alone"):
        load_tasks("bfcl")
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(RECORD | {"classes": 7}))
    with pytest.raises(UserError, match="'lamp_0' is no task"):
        load_tasks("bfcl", (f"path={path}",))


@pytest.mark.parametrize(
    "classes", [["code:InteractiveInterpreter"], {"Lamp": "code:InteractiveInterpreter"}, ["os"], "Lamp", [["Lamp"]]]
)
def test_a_record_or_a_task_runs_no_class_that_no_package_declares(tmp_path, lamp, classes):
    """An interpreter's public methods are tools that run Python on the host."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(RECORD | {"classes": classes}))
    with pytest.raises(UserError, match=r"no simulated API|no list of names"):
        load_tasks("bfcl", (f"path={path}",))
    told = {**lamp.metadata["apis"], "classes": classes}
    hostile = dataclasses.replace(lamp, metadata={**lamp.metadata, "apis": told})
    with pytest.raises(UserError, match=r"no simulated API|no list of names"):
        asyncio.run(SimulatedAPIs().open(Workplace(hostile, 0)))


@pytest.mark.external
@pytest.mark.parametrize("category", ["base", "miss_param", "long_context"])
def test_the_leaderboards_reference_calls_earn_1_and_the_null_policy_0(check, category):
    tasks = load_tasks("bfcl", (f"category={category}",), "test")
    check(tasks, oracles.get("bfcl"))
    assert len(tasks) == 200
