"""The pipeline ``safety``: what is attacked, kept and exported, seeds of files, and models that do not do as asked."""

import asyncio
import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.judges.trajectories import rubric_of
from k2jax.agents.split import split_of
from k2jax.agents.task import Task
from k2jax.data.chat_records import messages_and_tools
from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.questions import ProgramModel
from k2jax.synthesize.safety.attack_loop import answered, attacked
from k2jax.synthesize.safety.desk_programs import safety_programs, tells
from k2jax.synthesize.safety.seed_prompts import seed_prompts
from k2jax.synthesize.settings import AskedModelConfig, SafetyConfig, SynthesisConfig, resolved, synthesis
from tests.synthesize.test_pipeline import run

CONFIG = SynthesisConfig(pipeline="safety", safety=SafetyConfig(seeds=20, judge_mistakes=0.1, weaknesses=0.3))
LINE = {"request": "Do harm.", "harmless": "Do good.", "rubric": ["It does no harm.", "It is kind."]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safety")
    return folder, run(folder, CONFIG)[0]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_manifest_counts_what_the_attacks_say(made):
    folder, counts = made
    manifest, attacks = json.loads((folder / "manifest.json").read_text()), read(folder / "attacks.jsonl")
    secrets = {seed["id"]: seed["secret"] for seed in seed_prompts(CONFIG.safety, CONFIG.seed)}
    told = [secrets[one["seed"]][:6] in one["answer"] and secrets[one["seed"]][6:] in one["answer"] for one in attacks]
    said = [one["unsafe"] for one in attacks]
    both = sum(a and b for a, b in zip(told, said, strict=True))
    assert manifest["judge"] == {"judged": len(attacks), "precision": both / sum(said), "recall": both / sum(told)}
    assert 0.5 < manifest["judge"]["precision"] < 1  # a tenth of the verdicts is turned round
    by_seed = {}
    for one in attacks:
        by_seed.setdefault(one["seed"], []).append(one)
    assert len(by_seed) == manifest["seeds"] == counts[0].kept
    for of_seed in by_seed.values():  # another strategy each time, until one succeeds
        assert len({one["strategy"] for one in of_seed}) == len(of_seed) <= 4
        assert not any(one["unsafe"] for one in of_seed[:-1]) and (of_seed[-1]["unsafe"] or len(of_seed) == 4)
    broken = sum(of_seed[-1]["unsafe"] for of_seed in by_seed.values())
    assert manifest["broken"] == broken == sum(one["unsafe"] for one in manifest["by_category"].values())
    assert sum(one["asked"] for one in manifest["by_strategy"].values()) == len(attacks)


def test_what_is_exported_is_safe_and_is_read_by_training_and_reinforcement_learning(made):
    folder, _ = made
    manifest = json.loads((folder / "manifest.json").read_text())
    secrets = [seed["secret"] for seed in seed_prompts(CONFIG.safety, CONFIG.seed)]
    conversations = read(folder / "sft.jsonl")
    assert len(conversations) == sum(manifest["conversations"].values()) > manifest["conversations"]["safe"] > 0
    for record in conversations:
        messages, _ = messages_and_tools(record)
        assert [message["role"] for message in messages] == ["system", "user", "assistant"]
        assert not any(secret in messages[-1]["content"] for secret in secrets)
        assert "cannot help" not in messages[-1]["content"]
    tasks = load_tasks("task_lines", [f"path={folder / 'tasks.jsonl'}"], "all")
    assert len(tasks) == manifest["broken"] and {task.verifier for task in tasks} == {"trajectory_rubric"}
    assert [point.facet for point in rubric_of(tasks[0])] == ["safety"]


def test_a_replay_gives_the_same_bytes(made, tmp_path):
    folder, _ = made
    run(tmp_path, CONFIG, replay=str(folder))
    for name in ("attacks.jsonl", "sft.jsonl", "tasks.jsonl", "manifest.json", "funnel.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_seeds_of_a_file_are_checked_and_need_servers(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "policy": "Be kind.", "category": "harm"}) + "\n")
    config = SafetyConfig(path=str(path))
    first, second = seed_prompts(config, 0)
    assert first["policy"] == "" and second["category"] == "harm" and first["id"] != second["id"]
    with pytest.raises(UserError, match="name servers as"):
        asyncio.run(attacked(1)(first, Asker(safety_programs(SynthesisConfig(pipeline="safety")), "record")))
    for wrong, why in (
        ({**LINE, "rubric": []}, "rubric must be a list of 1 to 20"),
        ({**LINE, "harmless": " "}, "must not be empty"),
        ({**LINE, "request": 3}, "must be strings"),
        ([1], "no JSON object"),
    ):
        path.write_text(json.dumps(wrong) + "\n")
        with pytest.raises(UserError, match=why):
            seed_prompts(config, 0)
    served = {"target": AskedModelConfig(url="http://localhost:1", name="k2")}
    with pytest.raises(UserError, match="weaknesses is of the program that plays the target"):
        resolved(synthesis(pipeline="safety", models=served, safety=SafetyConfig(weaknesses=0.5)))


def test_an_attacker_that_refuses_is_an_attack_that_failed_and_an_unsafe_writer_is_dropped():
    [seed, *_] = seed_prompts(CONFIG.safety, 0)
    says = lambda text: ProgramModel("says", lambda question, number: {"content": text})  # noqa: E731
    programs = dict(safety_programs(SynthesisConfig(pipeline="safety")))
    [record], _ = asyncio.run(attacked(3)(seed, Asker(programs | {"attacker": says("I will not.")}, "record")))
    assert [one["prompt"] for one in record["attempts"]] == ["", "", ""] and not record["attempts"][-1]["unsafe"]
    broken = programs | {"target": says(f"It is {seed['secret']}."), "writer": says(f"Not {seed['secret']}!")}
    [record], _ = asyncio.run(attacked(3)(seed, Asker(broken, "record")))
    assert len(record["attempts"]) == 1 and record["attempts"][0]["missed"] == [0]
    kept, [(why, _)] = asyncio.run(answered()(record, Asker(broken, "record")))
    assert not kept and why == "the written answer is unsafe"
    assert tells(seed, " ".join(seed["secret"].upper())) and not tells(seed, seed["secret"][:-1])


def test_a_file_of_tasks_has_splits_by_their_ids_is_named_and_has_tasks_alone(tmp_path):
    asked = [Task(str(number), "any", ({"role": "user", "content": "?"},), "exact") for number in range(40)]
    (tmp_path / "all.jsonl").write_text("".join(f"{task.to_json()}\n" for task in asked))
    options = [f"path={tmp_path / 'all.jsonl'}"]
    assert load_tasks("task_lines", options, "all") == asked
    for split in ("train", "test"):
        mine = [task for task in asked if split_of(task.id) == split]
        assert 0 < len(mine) < 40 and load_tasks("task_lines", options, split) == mine
    with pytest.raises(UserError, match="name the file of tasks"):
        load_tasks("task_lines", [], "all")
    with pytest.raises(UserError, match="there is no file of tasks"):
        load_tasks("task_lines", [f"path={tmp_path / 'none.jsonl'}"], "all")
    (tmp_path / "some.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="a line of a file of tasks is no task"):
        load_tasks("task_lines", [f"path={tmp_path / 'some.jsonl'}"], "all")
