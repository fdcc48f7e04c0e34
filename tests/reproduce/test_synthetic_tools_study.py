"""The study of filtered trajectories: its sorts of data, how its runs fit together, and its summary."""

import json

import pytest

from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file

study = load_study_file("synthetic_tools")


@pytest.fixture
def folder(tmp_path):
    """Outputs of a synthesis: four of ten conversations are right; the judge keeps three of them, and a wrong one."""

    def line(number):
        exact = {"solved": number < 4, "planted": "nobody"}
        return json.dumps({"messages": [{"role": "user", "content": str(number)}], "tools": [], "exact": exact})

    (tmp_path / "unfiltered.jsonl").write_text("".join(line(number) + "\n" for number in range(10)))
    (tmp_path / "sft.jsonl").write_text("".join(line(number) + "\n" for number in (0, 1, 2, 7)))
    return tmp_path


def test_the_sorts_are_of_one_size_and_say_nothing_of_verdicts(folder):
    found = {
        name: [int(record["messages"][0]["content"]) for record in records]
        for name, records in study.sorts(folder).items()
    }
    assert {name: len(numbers) for name, numbers in found.items()} == dict.fromkeys(found, 4)
    assert set(found["exact.jsonl"]) == {0, 1, 2, 3} and set(found["judged.jsonl"]) == {0, 1, 2, 7}
    assert len(set(found["unfiltered.jsonl"])) == 4 and max(found["unfiltered.jsonl"]) > 3
    assert all(set(record) == {"messages"} for records in study.sorts(folder).values() for record in records)


def test_every_run_learns_from_its_sort_and_rewards_continue_from_what_the_judge_kept(tmp_path):
    for run, config in run_configs(study.STUDY, tmp_path).items():
        seed, _, name = run.partition("_")
        started = {"pretrained": None, "rl": str(tmp_path / f"{seed}_sft_judged")}
        assert config.init_from == started.get(name, str(tmp_path / f"{seed}_pretrained"))
        assert config.stage == {"pretrained": "pretrain", "rl": "rl"}.get(name, "sft")
        data = {"pretrained": "texts", "rl": ""}.get(name, name.removeprefix("sft_"))
        assert config.data.sources["texts"].path == (str(tmp_path / f"{data}.jsonl") if data else "")


def test_lines_of_pretraining_come_again():
    for number in range(50):
        lines = study.text_of(number).split("\n")
        half = len(lines) // 2
        assert sorted(lines[:half]) == sorted(lines[half:]) and 1 <= half <= 3


def test_the_summary_says_what_filtering_and_rewards_add():
    """Over all, 0.4, filtering adds 30 points, and rewards 20 more."""
    shares = {"pretrained": 0.0, "sft_unfiltered": 0.4, "sft_judged": 0.7, "sft_exact": 0.8, "rl": 0.9}
    made = {}
    for run, config in run_configs(study.STUDY, "runs").items():
        name = run.partition("_")[2]
        keys = ["eval/greedy", study.AVERAGE, study.PASS, *(f"{study.AVERAGE}/{kind}" for kind in study.KINDS)]
        curves = [{"step": step, "seconds": 60.0 * step, "loss": 1.0} for step in (1, 2)]
        made[run] = RunResult(config, curves, 0, dict.fromkeys(keys, shares[name]))
    text = study.summarize(made).markdown
    assert "solves +30.0 (+30.0 to +30.0) points more" in text and "Rewards add +20.0 (+20.0 to +20.0)" in text
    assert "took 2.0 (2.0 to 2.0) minutes" in text
