"""The study of K2's recipe: it shares runs with another study, and says what each part changes."""

import pytest

from k2jax.reproduce import RunResult, study
from k2jax.reproduce.study_file import Study, load_study_file

recipe = load_study_file("k2_recipe")


def results(of_run):
    """Made-up results of every run: ``of_run(name, seed)`` is what its evaluation adds to a common one."""
    every = ("eval/greedy", "eval/avg@8", "eval/pass@8", "easier/greedy", "easier/sampled", "reversing", "text_loss")
    common = dict.fromkeys((*every, "length", "over_budget", "within_budget"), 0.5)
    made = {}
    for run, config in study.run_configs(recipe.STUDY, "runs").items():
        seed, name = int(run[4]), run.partition("_")[2]
        entropy = 0.2 if name == "rl_decay" else 0.1
        steps = range(1, 31) if name.startswith("rl") else ()
        records = [{"step": t, "length": 30.0, "truncated": 0.0, "tokens/entropy": entropy / t} for t in steps]
        made[run] = RunResult(config, records, 0, common | of_run(name, seed))
    return made


def test_the_start_is_that_of_the_other_study():
    """The same names and overrides, so that its finished runs are used; each part changes its own keys alone."""
    other, own = load_study_file("nano_post_training").runs(), recipe.runs()
    for seed in (0, 1, 2):
        for name in ("pretrained", "sft", "rl_k2.5"):
            assert own[f"seed{seed}_{name}"] == other[f"seed{seed}_{name}"]
        for name, part in recipe.PARTS.items():
            assert own[f"seed{seed}_{name}"] == other[f"seed{seed}_rl_k2.5"] | part
    assert len(own) == 3 * 6


def test_changes_are_paired_by_seed():
    """Seeds 0, 1, 2 start 10 points apart and lose 20, 22 and 24 points: the spread of starts does not enter."""

    def of_run(name, seed):
        return {"eval/greedy": 0.6 + 0.1 * seed - (0.20 + 0.02 * seed) * (name == "rl_budget")}

    text = recipe.summarize(results(of_run)).markdown
    assert "greedy accuracy by -22.0 (-24.0 to -20.0)" in text
    assert "Avg@8 by +0.0 (+0.0 to +0.0)" in text


def test_entropy_is_of_the_ends_of_a_run():
    """Means of 0.2 / t over t = 1..10 and 21..30."""
    lines = recipe.summarize(results(lambda *run: {})).markdown.splitlines()
    row = next(line for line in lines if line.startswith("| RL with temperature decay"))
    first, last = (sum(0.2 / t for t in steps) / 10 for steps in (range(1, 11), range(21, 31)))
    assert row.split("|")[-3].split()[0] == f"{first:.3f}"
    assert row.split("|")[-2].split()[0] == f"{last:.3f}"


def test_studies_that_share_a_run_keep_their_own_evaluations(tmp_path):
    for name in ("one", "another"):
        measured = Study(None, None, None, evaluate=lambda config, workdir, name=name: {"of": name})
        assert study._evaluated(name, measured, None, tmp_path) == {"of": name}
    again = Study(None, None, None, evaluate=lambda config, workdir: pytest.fail("measured twice"))
    assert study._evaluated("one", again, None, tmp_path) == {"of": "one"}
