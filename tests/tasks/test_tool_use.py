"""Problems that take tools: solutions are right, splits are disjoint, and null policies earn nothing."""

import asyncio
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.options import split_options
from k2jax.agents.registry import verifiers
from k2jax.agents.task import check_choices
from k2jax.client import ScriptedClient
from k2jax.config.schema import TaskConfig
from k2jax.errors import UserError
from k2jax.tasks.tool_use.demonstrations import solved, tool_demonstrations
from tests.agents.tool_episodes import BYTES, COMPACT, episode

KINDS = "kinds=calc1+calc3+kv2+kv3+hop1+hop3"


def test_the_oracle_solves_every_problem_with_its_tools_and_a_null_policy_none():
    for task in load_tasks("tool_use", (KINDS, "count=24")):
        lines = [COMPACT.render(m) for m in solved(task) if m["role"] == "assistant"]
        turns = iter(lines)
        oracle = episode(ScriptedClient(lambda prompt, sampling, turns=turns: [*next(turns), BYTES.eos]), task)
        assert verifiers.get(task.verifier)(task, oracle.answer).value == 1.0
        said = [node.message.get("content") for node in oracle.nodes if node.message["role"] == "tool"]
        assert said == [m["content"] for m in solved(task) if m["role"] == "tool"]
        null = episode(ScriptedClient(lambda prompt, sampling: [BYTES.eos]), task)
        assert verifiers.get(task.verifier)(task, null.answer).value == 0.0


def test_answers_of_sums_are_what_python_says():
    for task in load_tasks("tool_use", ("kinds=calc2+calc4", "count=40")):
        assert str(eval(task.instruction[0]["content"].rstrip("="))) == task.metadata["answer"]
    for task in load_tasks("tool_use", ("kinds=kv3", "count=20")):
        names = {key: int(value) for key, value in task.metadata["store"].items()}
        assert str(eval(task.instruction[0]["content"].rstrip("="), names)) == task.metadata["answer"]


def test_the_teacher_answers_a_share_at_once():
    tasks = load_tasks("tool_use", ("count=300",))
    lengths = [len(record["messages"]) for record in tool_demonstrations(tasks, direct=0.6)]
    assert 0.5 < sum(length == 2 for length in lengths) / 300 < 0.7
    assert all(len(record["messages"]) > 2 for record in tool_demonstrations(tasks, direct=0.0))
    json.dumps(list(tool_demonstrations(tasks)))


def test_a_config_replaces_what_the_dataset_chose_and_nothing_else():
    (task,) = load_tasks("characters", ("count=1",))
    assert task.with_choices(TaskConfig()) == task
    choices = TaskConfig(tools=("calculator",), scaffold="chat context=summary tokens=99", steps=4, verifier="math")
    other = task.with_choices(choices)
    assert (other.environment, other.tools, other.budget.steps) == ("tools", ("calculator",), 4)
    assert (other.verifier, other.instruction, other.metadata) == ("math", task.instruction, task.metadata)
    prompts = TaskConfig(components=("system text='Be brief.'", "suffix text=Now."))
    prompted = task.with_choices(prompts)
    contents = [message["content"] for message in prompted.instruction]
    assert contents == ["Be brief.", task.instruction[0]["content"] + "\n\nNow."]


@pytest.mark.parametrize(
    "choices",
    [
        TaskConfig(tools=("calk",)),
        TaskConfig(tools=("shell timeout=long",)),
        TaskConfig(scaffold="chart"),
        TaskConfig(environment="nowhere"),
        TaskConfig(verifier="nobody"),
        TaskConfig(components=("system",)),
    ],
)
def test_a_wrong_name_or_option_stops_before_the_run(choices):
    with pytest.raises(UserError):
        check_choices(choices)
        load_tasks("characters", ("count=1",))[0].with_choices(choices)


def test_options_stand_behind_a_name_quoted_as_in_a_shell():
    assert split_options("search corpus='my docs.jsonl' page=3", "x") == ("search", ["corpus=my docs.jsonl", "page=3"])
    for text in ("", "search corpus='x"):
        with pytest.raises(UserError, match="names no x"):
            split_options(text, "x")


def test_an_episode_runs_in_an_event_loop_that_is_used_once():
    """The environment holds nothing of a loop between episodes."""
    (task,) = load_tasks("tool_use", ("kinds=hop1", "count=1"))
    for _ in range(2):
        result = episode(ScriptedClient(lambda prompt, sampling: [*BYTES.encode("7"), BYTES.eos]), task)
        assert result.status == "finished"
    asyncio.run(asyncio.sleep(0))
