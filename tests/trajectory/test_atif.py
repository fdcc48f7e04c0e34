"""ATIF documents, against the fields and rules of version 1.7 as Harbor's models and its RFC state them."""

import dataclasses
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.text.tokenizer import byte_tokenizer
from k2jax.trajectory import Node, Trajectory, TrajectoryStore
from k2jax.trajectory.atif import atif_document, atif_name
from k2jax.trajectory.links import sub_trajectories
from k2jax.trajectory.steps import AGENT, SPAWNED, add_spawned
from tests.command import run_command
from tests.trajectory.swarms import answer, begun, searcher, serial, swarm, unspawned
from tests.trajectory.trees import JSON, call, chat, message, sampled, trajectories

TEXT, COUNT, OBJECT, TEXTS = (str,), (int,), (dict,), (str, list)
AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
FIELDS = {  # of each object: types of its fields by name; a star marks those that must be there
    "trajectory": {
        "*schema_version": TEXT, "session_id": TEXT, "trajectory_id": TEXT, "*agent": OBJECT, "*steps": (list,),
        "notes": TEXT, "final_metrics": OBJECT, "continued_trajectory_ref": TEXT, "extra": OBJECT,
        "subagent_trajectories": (list,),
    },
    "agent": {"*name": TEXT, "*version": TEXT, "model_name": TEXT, "tool_definitions": (list,), "extra": OBJECT},
    "step": {
        "*step_id": COUNT, "timestamp": TEXT, "*source": TEXT, "model_name": TEXT, "reasoning_effort": (str, float),
        "*message": TEXTS, "reasoning_content": TEXT, "tool_calls": (list,), "observation": OBJECT, "metrics": OBJECT,
        "is_copied_context": (bool,), "llm_call_count": COUNT, "extra": OBJECT,
    },
    "tool_call": {"*tool_call_id": TEXT, "*function_name": TEXT, "*arguments": OBJECT, "extra": OBJECT},
    "observation": {"*results": (list,)},
    "result": {"source_call_id": TEXT, "content": TEXTS, "subagent_trajectory_ref": (list,), "extra": OBJECT},
    "reference": {"trajectory_id": TEXT, "trajectory_path": TEXT, "session_id": TEXT, "extra": OBJECT},
    "metrics": {
        "prompt_tokens": COUNT, "completion_tokens": COUNT, "cached_tokens": COUNT, "cost_usd": (float,),
        "prompt_token_ids": (list,), "completion_token_ids": (list,), "logprobs": (list,), "extra": OBJECT,
    },
    "final_metrics": {
        "total_prompt_tokens": COUNT, "total_completion_tokens": COUNT, "total_cached_tokens": COUNT,
        "total_cost_usd": (float,), "total_steps": COUNT, "extra": OBJECT,
    },
    "part": {"*type": TEXT, "text": TEXT, "source": OBJECT},
}  # fmt: skip


def fields(kind, value):
    """Asserts that an object has the fields of its kind, no others, and of the right types."""
    types = {name.removeprefix("*"): kinds for name, kinds in FIELDS[kind].items()}
    required = {name[1:] for name in FIELDS[kind] if name[0] == "*"}
    assert required <= value.keys() <= types.keys(), (kind, value.keys())
    for name, each in value.items():
        assert type(each) in types[name], (kind, name, each)


def check_step(step, number, below):
    fields("step", step)
    assert step["step_id"] == number and step["source"] in ("system", "user", "agent")
    assert step["source"] == "agent" or not AGENT_ONLY & step.keys()
    for part in step["message"] if isinstance(step["message"], list) else []:
        fields("part", part)
    calls = step.get("tool_calls", [])
    for each in calls:
        fields("tool_call", each)
    ids = [each["tool_call_id"] for each in calls]
    assert len(set(ids)) == len(ids) and all(ids)
    if "metrics" in step:
        fields("metrics", step["metrics"])
    references = []
    if "observation" in step:
        fields("observation", step["observation"])
        for result in step["observation"]["results"]:
            fields("result", result)
            assert result.get("source_call_id") in (None, *ids)
            references += result.get("subagent_trajectory_ref", [])
    for reference in references:
        fields("reference", reference)
        assert reference["trajectory_id"] in below
    return [reference["trajectory_id"] for reference in references]


def check(document):
    """Asserts that a document is one of ATIF 1.7, and that each embedded trajectory is referred to once."""
    fields("trajectory", document)
    fields("agent", document["agent"])
    fields("final_metrics", document["final_metrics"])
    assert document["schema_version"] == "ATIF-v1.7" and document["steps"]
    below = [each["trajectory_id"] for each in document.get("subagent_trajectories", [])]
    assert len(set(below)) == len(below)
    steps = enumerate(document["steps"], 1)
    references = [reference for number, step in steps for reference in check_step(step, number, below)]
    assert sorted(references) == sorted(below)
    for each in document.get("subagent_trajectories", []):
        check(each)


def written(trajectory):
    return json.loads(json.dumps(atif_document(trajectory, "run"), allow_nan=False))


def results_of(document):
    return [each for step in document["steps"] for each in step.get("observation", {"results": []})["results"]]


@pytest.mark.parametrize(
    "trajectory", [swarm(), serial(), chat(), unspawned(chat()), Trajectory("a", "b", (0, 0, 0))],
    ids=["swarm", "serial", "alone", "of the environment", "empty"],
)  # fmt: skip
def test_episodes_become_documents_of_the_format(trajectory):
    check(written(trajectory))


def test_sub_agents_are_embedded_and_the_calls_that_spawned_them_refer_to_them():
    document = written(swarm())
    below = document["subagent_trajectories"]
    assert (document["trajectory_id"], document["session_id"]) == ("train-4-1-0", "run/train-4-1-0")
    assert [each["agent"]["name"] for each in below] == [
        "counter", "surveyor", "clerk", "clerk of the south", "hydrologist", "pilot", "checker",
    ]  # fmt: skip
    nested = below[1]["subagent_trajectories"][0]
    assert nested["trajectory_id"] == "train-4-1-0/1/0" and nested["agent"]["extra"] == {"role": "reader"}
    referring = [each for each in results_of(document) if "subagent_trajectory_ref" in each]
    assert [each["source_call_id"] for each in referring] == [f"call_{n}" for n in (100, 101, 102, 300, 301, 302, 400)]
    assert referring[0]["content"] == "population: found"
    assert referring[4]["subagent_trajectory_ref"][0]["extra"]["status"] == "truncated"
    counts = document["final_metrics"]
    assert counts["total_completion_tokens"] == 189 and below[0]["final_metrics"]["total_completion_tokens"] == 225


def test_an_answer_keeps_its_calls_ids_and_results_whatever_they_are():
    trajectory = begun("task", "look")
    calls = [call("add", '{"a": 1}'), call("add", "no json", 0), {"function": 3}, call("look", ["x"], 4)]
    words = message("assistant", "hm", reasoning_content="so", tool_calls=calls)
    node = trajectory.add(sampled(0, [7, 8], message=words))
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "x"}]
    trajectory.add(Node.observed(node, [1], message("tool", parts, tool_call_id="call_0")))
    trajectory.add(Node.observed(node, [1], message("tool", "b", tool_call_id="another", is_error=True)))
    trajectory.metadata[SPAWNED] = {"0": {"turn": 1, "call": 9, AGENT: "lost"}}
    document = written(trajectory)
    check(document)
    step = document["steps"][1]
    assert [each["tool_call_id"] for each in step["tool_calls"]] == [
        "call_0",
        "node_1_call_1",
        "node_1_call_2",
        "call_4",
    ]
    assert step["tool_calls"][1]["extra"] == {"k2jax": {"arguments": "no json"}}
    assert (step["reasoning_content"], step["metrics"]["completion_token_ids"]) == ("so", [7, 8])
    assert step["metrics"]["logprobs"] == pytest.approx([-0.7, -0.8]) and step["metrics"]["prompt_tokens"] == 8
    first, second = results_of(document)
    assert [part["text"] for part in first["content"]] == ["a", "[image_url]"]
    assert second["extra"]["k2jax"] == {"node": 3, "is_error": True, "tool_call_id": "another"}
    (lost,) = document["extra"]["k2jax"]["sub_agents_without_trajectory"]
    assert lost["agent"] == "lost", "a sub-agent that was not stored is named"


def test_the_report_of_a_black_box_is_no_name_of_a_sub_agent():
    trajectory = begun("task", "look")
    trajectory.metadata["agent"] = {"name": "opencode", "ended_by": "itself", "output": "done"}
    assert trajectory.about.keys() == {"task", "domain", "key", "reward"}
    assert written(trajectory)["agent"]["name"] == "policy"


def test_a_call_without_a_result_yet_refers_to_its_sub_agent():
    trajectory = begun("task", "look")
    answer(trajectory, "", [("assign_task", "{}")] * 2)
    add_spawned(trajectory, 0, (1, 1), searcher("first", 2))
    document = written(trajectory)
    check(document)
    (result,) = results_of(document)
    assert result["source_call_id"] == document["steps"][1]["tool_calls"][1]["tool_call_id"]
    assert result["subagent_trajectory_ref"][0]["trajectory_id"] == "train-4-1-0/0" and "content" not in result


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "critic"]) | JSON},
    optional={
        "content": JSON | st.lists(st.fixed_dictionaries({"type": JSON, "text": JSON}), max_size=2),
        "tool_calls": JSON | st.lists(st.fixed_dictionaries({"id": JSON, "function": JSON}), max_size=3),
        "tool_call_id": st.sampled_from(["", "a"]) | JSON,
        "reasoning_content": JSON,
    },
)


@settings(max_examples=10)
@given(
    shown=st.lists(trajectories(), min_size=1, max_size=3),
    messages=st.lists(MESSAGES, min_size=4, max_size=4),
    links=JSON,
)
def test_any_trajectory_is_a_document(shown, messages, links):
    main, *below = shown
    main.nodes = [dataclasses.replace(node, message=each) for node, each in zip(main.nodes, messages, strict=False)]
    main.spawned, main.metadata[SPAWNED] = dict(enumerate(below)), links
    check(written(main))


@pytest.fixture
def workdir(tmp_path):
    byte_tokenizer().save(tmp_path / "tokenizer")
    with TrajectoryStore(tmp_path / "trajectories") as store:
        store.write(4, [swarm(), serial(1)])
    return tmp_path


def test_the_command_writes_a_document_for_each_episode(workdir):
    out = workdir / "episodes"
    done = run_command("k2jax.trajectories", str(workdir), "--atif", f"--out={out}")
    assert (done.returncode, done.stdout) == (0, f"{out}: 2 episodes\n"), done.stderr
    documents = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert documents.keys() == {f"{atif_name(each)}.json" for each in (swarm(), serial(1))}
    for document in documents.values():
        check(document)
        assert document["session_id"].startswith(f"{workdir.name}/train-4-1-")


def test_rows_of_sub_agents_are_exported_on_request_and_counted_otherwise(workdir):
    out = workdir / "rows.jsonl"
    words = ["k2jax.trajectories", str(workdir), "--filters=finished,correct_answer", f"--out={out}"]
    done = run_command(*words)
    left_out = "12 trajectories of sub-agents are left out; --sub_agents exports them too\n"
    assert done.stdout == f"{out}: 1 lines\n{left_out}", done.stderr
    assert run_command(*words, "--sub_agents").stdout == f"{out}: 5 lines\n"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("sub_agent") for row in rows] == [None, "step 1", "step 2", "step 3", "step 4"]
    assert {row["role"] for row in rows[1:]} == {"worker"} and {row["reward"] for row in rows} == {1.0}
    done = run_command("k2jax.trajectories", str(workdir), "--sub_agents", "--atif", "--out=x")
    assert done.returncode == 2 and "give --format or --filters" in done.stderr
    rows = ["k2jax.trajectories", str(workdir), "--format=turns", "--sub_agents", f"--out={out}"]
    answers = sum(len({n.turn for n in t.nodes}) - 1 for e in (swarm(), serial()) for t in (e, *sub_trajectories(e)))
    assert run_command(*rows).stdout == f"{out}: {answers} lines\n"
