"""Runs of a pipeline: what is written, what a second run does, replays, chaos, kills and a cluster."""

import asyncio
import itertools
import json
import os
from pathlib import Path
import random
import signal
import subprocess
import sys
import time

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.config import load_experiment
from k2jax.data.chat_records import messages_and_tools
from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.kept_results import LOG, STAGES
from k2jax.synthesize.pipeline import OUT, Machines, Synthesis
from k2jax.synthesize.questions import ProgramModel
from k2jax.synthesize.settings import AskedModelConfig, SynthesisConfig, ToolUseConfig, resolved, synthesis
from k2jax.synthesize.tool_use.exports import judge_agreement
from k2jax.synthesize.tool_use.pipeline import tool_use_stages
from k2jax.synthesize.tool_use.trajectory_judge import DISAGREE, judged

SMALL = SynthesisConfig(tool_use=ToolUseConfig(tools=18, agents=4, tasks=8, failures=0.03, mistakes=0.4))
OUTPUTS = ("sft.jsonl", "unfiltered.jsonl", "tasks.jsonl", "funnel.json", "funnel.md", "manifest.json")


def run(folder, config=SMALL, replay="", **machines):
    lines = []
    synthesis = Synthesis(folder, config, Machines(**{"workers": 1} | machines), replay, lines.append)
    return asyncio.run(synthesis.run()), lines


def outputs(folder):
    return {name: (Path(folder) / name).read_bytes() for name in OUTPUTS}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthesis")
    return folder, *run(folder)


def test_every_record_is_kept_or_dropped_for_a_reason(made):
    folder, counts, lines = made
    assert [count.stage for count in counts][-3:] == ["tasks", "dialogues", "judged"] and len(lines) == len(counts)
    for before, after in itertools.pairwise(counts):
        assert after.records == before.kept
    for name in ("dialogues", "judged"):
        [one] = [count for count in counts if count.stage == name]
        assert one.records == one.kept + sum(one.dropped.values())
    judged = counts[-1]
    assert 0 < judged.kept < judged.records and judged.dropped["the agent failed"] > 0
    assert json.loads((folder / "manifest.json").read_text())["judge"]["judged"] == judged.records
    page = (folder / "samples.html").read_text()
    assert "the agent failed" in page and "<script" not in page


def test_what_is_exported_is_read_by_training_and_reinforcement_learning(made):
    folder, counts, _ = made
    records = [json.loads(line) for line in (folder / "sft.jsonl").read_text().splitlines()]
    assert len(records) == counts[-1].kept
    for record in records:
        messages, tools = messages_and_tools(record)
        assert messages[0]["role"] == "system" and {tool["type"] for tool in tools} == {"function"}
    tasks = load_tasks("worlds", (f"path={folder / 'tasks.jsonl'}",), "all")
    assert len(tasks) == counts[-2].kept


def test_a_second_run_does_nothing_and_a_replay_gives_the_same_bytes(made, tmp_path):
    folder, counts, _ = made
    before = outputs(folder)
    sizes = {path: path.stat().st_size for path in folder.glob(f"{STAGES}/*/{LOG}")}
    assert run(folder)[0] == counts and outputs(folder) == before
    assert {path: path.stat().st_size for path in folder.glob(f"{STAGES}/*/{LOG}")} == sizes
    run(tmp_path, replay=str(folder), workers=2, at_once=3)
    assert outputs(tmp_path) == before


def test_another_config_in_the_folder_is_refused(made):
    with pytest.raises(UserError, match="holds a run of another config"):
        Synthesis(made[0], SynthesisConfig(seed=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pipeline": "none"}, "pipeline"),
        ({"models": {"agent": {"url": "http://localhost:1"}}}, "needs both url and name"),
        ({"models": {"agent": {"chaos": 2.0}}}, "chaos"),
        ({"tool_use": {"tools": 0}}, "tools"),
        ({"repository": {"rounds": 5}}, "config.repository is of the pipeline tools, and this is tool_use"),
        ({"pipeline": "tools", "tool_use": {"tasks": 5}}, "config.tool_use is of the pipeline tool_use"),
        ({"tool_use": {"colour": 1}}, "unknown key"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(changes, message):
    with pytest.raises(UserError, match=message) as error:
        resolved({**synthesis().to_dict(), **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", sorted(Path("experiments/synthesis").glob("*.py")), ids=lambda path: path.stem)
def test_every_experiment_resolves(path):
    module = load_experiment(path)
    assert "python -m k2jax.synthesize" in module.__doc__
    assert resolved(module.get_config()).models == {}


CHAOS = dict.fromkeys(("writer", "agent", "judge"), AskedModelConfig(chaos=0.08))


@pytest.mark.slow
def test_with_models_of_chaos_nothing_is_lost_or_doubled(tmp_path):
    config = SynthesisConfig(models=CHAOS, tool_use=SMALL.tool_use)
    counts = {count.stage: count for count in run(tmp_path, config, workers=2)[0]}
    for before, after in itertools.pairwise(counts.values()):
        assert after.records == before.kept
    for one in counts.values():
        for path in tmp_path.glob(f"{STAGES}/*_{one.stage}/{LOG}"):
            keys = [json.loads(line.partition(b" ")[2])["key"] for line in path.read_bytes().splitlines()]
            assert len(keys) == len(set(keys)) and (len(keys) == one.records or len(keys) == 1)
    assert counts["judged"].records > 0
    before = outputs(tmp_path)
    run(tmp_path, config)
    assert outputs(tmp_path) == before


COMMAND = """
import sys
from tests.synthesize.test_pipeline import SMALL, run
run(sys.argv[1], SMALL, workers=2, at_once=2)
"""


@pytest.mark.slow
def test_twenty_kills_change_no_byte(made, tmp_path):
    rng, kills = random.Random(0), 0
    while kills < 20:
        process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], start_new_session=True)
        deadline = time.monotonic() + rng.uniform(0.5, 5.0)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            assert process.returncode == 0
            for path in tmp_path.glob(f"{STAGES}/*/{LOG}"):  # done before the last kill: begin again somewhere
                path.unlink() if rng.random() < 0.5 else None
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    run(tmp_path, SMALL, workers=2)
    assert outputs(tmp_path) == outputs(made[0])


@pytest.mark.external
def test_a_cluster_of_three_nodes_gives_the_same_bytes(made, tmp_path):
    """Needs ray."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        run(tmp_path, SMALL, workers=3, ray=cluster.address)
        assert outputs(tmp_path) == outputs(made[0])
    finally:
        ray.shutdown()  # a cluster removes no node that this process is connected to
        cluster.shutdown()


def test_a_second_verdict_sees_the_points_turned_round_and_must_be_the_same(made):
    folder, _, _ = made
    [path] = (folder / STAGES).glob("*_dialogues")
    records = [json.loads(line) for line in (path / OUT).read_text().splitlines()]
    long = max(records, key=lambda record: len(record["task"]["rubric"]))
    rubric, asked = long["task"]["rubric"], []
    assert len(rubric) > 1

    def says(question, blame, missed=""):
        asked.append(question.messages[0]["content"])
        points = [{"point": n, "met": p != missed, "turns": []} for n, p in enumerate(question.inputs["rubric"])]
        return {"content": json.dumps({"points": points, "blame": blame})}

    def verdicts(*answers):
        left = iter(answers)
        models = {"judge": ProgramModel("judge", lambda question, _: says(question, *next(left)))}
        return asyncio.run(judged("judge")(long, Asker(models, "record")))

    [kept], _ = verdicts(("nobody",), ("nobody",))
    assert [asked[1].index(point) for point in rubric] == sorted((asked[1].index(p) for p in rubric), reverse=True)
    assert [asked[0].index(point) for point in rubric] == sorted(asked[0].index(p) for p in rubric)
    _, [(why, record)] = verdicts(("nobody", rubric[0]), ("nobody", rubric[0]))
    assert why == "a point is not met"
    for verdict in (record["verdict"], record["second_verdict"]):
        assert {point["point"] for point in verdict["points"] if not point["met"]} == {0}
    for answers in ([("nobody",), ("nobody", rubric[0])], [("agent",), ("user",)]):
        _, [(why, dropped)] = verdicts(*answers)
        assert why == DISAGREE
    assert judge_agreement([kept], [dropped])["second_agrees"] == 0.5
    with pytest.raises(UserError, match="second_judge gives a second verdict"):
        resolved(synthesis(models={"second_judge": AskedModelConfig(url="http://localhost:1", name="k2")}))
    stages = tool_use_stages(SynthesisConfig(tool_use=ToolUseConfig(second_verdict=True)))
    assert stages[-1].options == {"second": "judge"}
