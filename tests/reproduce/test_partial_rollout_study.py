"""The study of partial rollouts: its summary of known counts, its runs, and the long tail of its demonstrations."""

import json

import numpy as np
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.reproduce import RunResult
from k2jax.reproduce.study import check_held_out, run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.tasks.characters.dataset import final_answer

partial = load_study_file("partial_rollout")


def results(greedy):
    """The first iterations count nothing; then a cap of C tokens takes C steps, and no cap 200 or 150, over 64 slots.

    Every second iteration has twice as many steps, of which it uses half as large a share.
    """
    evaluation = {"eval/avg@2": 0.5, "eval/length": 40.0, "lengths": [1] * (len(partial._bars()) - 1)}
    found = {}
    for run, config in run_configs(partial.STUDY, "runs").items():
        cap, wide = None if run == "start" else config.rl.rollout.token_cap, run.endswith("wide")
        of_run = evaluation | {"eval/greedy": 0.25 if cap is None else greedy(cap)}
        records = (
            []
            if cap is None
            else [_record(step, cap or (150 if wide else 200)) for step in range(1, partial.BEGIN + 5)]
        )
        found[run] = RunResult(config, records, 0, of_run)
    return found


def _record(step, steps):
    known = {
        "step": step,
        "groups": 8,
        "accuracy": 0.5,
        "stale_tokens": 0.25,
        "tokens/mismatch": 1e-6,
        "sync_seconds": 0,
    }
    known |= {"rollout_seconds": 2.0, "train_seconds": 3.0, "sampled_tokens": 1000, "prefill_tokens": 500}
    if step <= partial.BEGIN:
        return known | {"decode_steps": 10**6, "slots_used": 0.0}
    twice = step % 2
    return known | {"decode_steps": steps * (1 + twice), "slots_used": 1.0 / (1 + twice) * (32 / steps)}


def test_counts_are_of_the_later_iterations_and_shares_weigh_steps():
    text = partial.summarize(results(lambda cap: 0.75 if cap else 0.875)).markdown
    rows = {}
    for line in text.splitlines():
        if line.startswith("| ") and "---" not in line:
            name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
            rows.setdefault(name, []).extend(cell.partition(" (")[0] for cell in cells)
    expected = {"no cap, 12 prompts": 200, "no cap, 20 prompts": 150}
    expected |= {f"cap of {cap} tokens": cap for cap in (96, 48, 32)}
    assert list(rows) == ["run", *expected]
    for name, steps in expected.items():
        counted = dict(zip(rows["run"], rows[name], strict=True))
        assert counted["groups"] == "8.0" and counted["decode steps"] == f"{1.5 * steps:.0f}"
        assert counted["decode steps of a group"] == f"{1.5 * steps / 8:.1f}"
        assert counted["slots used"] == f"{(32 + 32) / (3 * steps):.3f}"  # tokens of two iterations over their slots
        assert counted["seconds of an iteration"] == "5.00" and counted["sampled tokens/s"] == "500"
        assert counted["greedy"] == ("0.875" if "no cap" in name else "0.750")
    assert "no cap, 20 prompts and with a cap of 32 tokens" in text and "0.250 at the start" in text
    assert "0.142 (0.142 to 0.142) and 0.667 (0.667 to 0.667) of the slots" in text


def test_runs_of_a_seed_differ_in_the_cap_and_the_prompts_in_flight_alone():
    runs = partial.runs()
    assert len(runs) == 1 + len(partial.SEEDS) * len(partial.RUNS)
    for seed in partial.SEEDS:
        own = [dict(runs[f"seed{seed}_{run}"]) for run in partial.RUNS]
        caps = [(each.pop("rl.rollout.token_cap"), each.pop("rl.rollout.prompts")) for each in own]
        assert caps == list(partial.RUNS.values()) and all(each == own[0] for each in own)
        assert own[0]["init_from"] == "{workdir}/start" and own[0]["train.seed"] == seed
    check_held_out("partial_rollout", partial.STUDY)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Problems and their demonstrations."""
    folder = tmp_path_factory.mktemp("partial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "DEMONSTRATIONS", 2000)
        partial.prepare(folder)
        tasks = load_tasks("characters", partial._options(2000))
    lines = (folder / "demonstrations.jsonl").read_text().splitlines()
    return [(task, json.loads(line)["messages"][1]["content"]) for task, line in zip(tasks, lines, strict=True)]


def test_demonstrations_are_right_whatever_their_length_and_every_check_holds(answers):
    for task, answer in answers:
        assert final_answer(task, answer).value == 1
        for step in filter(None, answer.rpartition(";")[0].replace("?", ",").split(",")):
            left, _, right = step.partition("=")
            assert eval(left) == int(right)


def test_most_demonstrations_are_short_and_few_are_long(answers):
    """The share of each number of checks falls by ``AGAIN``; the longest response fits, its end included."""
    lengths = np.array([len(answer) + 1 for _, answer in answers])
    checks = np.array([answer.count("?") for _, answer in answers if ";" in answer])
    assert lengths.max() <= partial.LONGEST and lengths.max() > 4 * lengths.mean()
    assert abs(np.mean([";" not in answer for _, answer in answers]) - partial.DIRECT) < 0.04
    for number in range(3):
        share = np.mean(checks == number)
        assert abs(share - (1 - partial.AGAIN) * partial.AGAIN**number) < 0.05
