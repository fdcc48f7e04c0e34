"""The study of Toggle: its summary of known evaluations, and the data of its teacher."""

import json

import numpy as np
import pytest

from k2jax.config import resolve
from k2jax.reproduce import RunResult
from k2jax.reproduce.study_file import load_study_file
from k2jax.rl.methods.toggle import Toggle
from k2jax.rl.tasks import TaskMixture

toggle = load_study_file("toggle")


def evaluation(tokens, right, problems=2000):
    """Half of the samples short and half long, equally often right; errors of a share of 2,000."""
    error = 1.96 * np.sqrt(right * (1 - right) / problems)
    record = {"tokens": tokens, "eval/length": tokens, "problems": problems}
    for name in ("eval/greedy", "eval/avg@2"):
        record |= {name: right, f"{name}/low": right - error, f"{name}/high": right + error}
    bars = len(range(0, toggle.EDGES[-1], toggle.BIN))
    for kind, share in (("right", right), ("wrong", 1 - right)):
        count = round(share * problems)
        record[f"bucket_{kind}"] = [count, 0, count]
        record[f"tokens_{kind}"] = [0] * 6 + [count] + [0] * (bars - 8) + [count]
    return record


def results(tokens, right):
    """A start and runs without and with Toggle that end at these tokens and shares."""
    found = {}
    for run, (length, share) in {"sft": (50.0, 0.9), "rl": (50.0, 0.95), "toggle": (tokens, right)}.items():
        config = toggle.get_config()
        records = [{"step": step, "length_right": length, "length_wrong": length + 1} for step in (1, 2, 3)]
        found[f"seed0_{run}"] = RunResult(resolve(config), records, 0, evaluation(length, share))
    return found


@pytest.mark.parametrize(
    ("tokens", "right", "met"),
    [
        (37.0, 0.95, True),
        (38.0, 0.95, False),  # 24 %
        (20.0, 0.928, True),  # 1 point and 2 x 0.0075 below
        (20.0, 0.920, False),
    ],
)
def test_the_target_is_the_cut_and_the_margin_of_the_study(tokens, right, met):
    text = toggle.summarize(results(tokens, right)).markdown
    assert f"2 standard errors on {int(met)} of 1 seeds" in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| sampled" in line]
    assert rows == [["0", "sampled", "50.0", f"{tokens:.1f}", f"{100 - 2 * tokens:.1f} %", "0.9500", f"{right:.4f}",
                     rows[0][7], "yes" if met else "no"]]  # fmt: skip
    allowed = 0.95 - 0.01 - 2 * np.sqrt((0.95 * 0.05 + right * (1 - right)) / 2000)
    np.testing.assert_allclose(float(rows[0][7]), allowed, atol=1e-4)


def test_the_start_is_shown_by_length_with_its_errors():
    text = toggle.summarize(results(37.0, 0.95)).markdown
    (row,) = [line for line in text.splitlines() if "±" in line]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert (
        cells[2] == "0, too few" and cells[1] == cells[3] == "0.900 ± 0.007 of 2,000" and cells[4].startswith("0.000 ±")
    )


def test_the_demonstrations_lie_in_the_buckets_of_the_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(toggle, "DEMONSTRATIONS", 600)
    toggle.prepare(tmp_path)
    lines = (tmp_path / "demonstrations.jsonl").read_text().splitlines()
    answers = [json.loads(line)["messages"][1]["content"] for line in lines]
    for answer in answers:
        bucket = np.searchsorted(toggle.EDGES, len(answer) + 1, side="right") - 1  # the end is a token too
        assert bucket == answer.count("?")
    assert len(answers) == 600


def test_two_thousand_problems_are_held_out_and_every_prompt_of_training_has_a_budget():
    config = resolve(*toggle.held_out_configs())
    held_out = TaskMixture(config.rl.tasks, 0).held_out(config.rl.eval_prompts)
    assert len({prompt.task.id for prompt in held_out}) == 2000
    runs = toggle.runs()
    study = toggle.get_config()
    study.update_from_flattened_dict(runs["seed0_toggle"])
    Toggle(resolve(study), TaskMixture(resolve(study).rl.tasks, 0))  # not refused
    differing = {key for key, value in runs["seed0_toggle"].items() if runs["seed0_rl"].get(key) != value}
    assert differing == {"rl.toggle.period", "rl.toggle.accuracy", "rl.toggle.percentile"}
