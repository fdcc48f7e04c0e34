"""The study of the closed loop: what its judge is taught, read back by other means, and its summary of known shares."""

import json

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.reproduce import RunResult
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file

study = load_study_file("closed_loop_critic")


@pytest.mark.parametrize(
    ("right", "first", "second", "working"),
    [
        ("abc", "abc", "abd", "aaa,bbb,ccd"),
        ("abc", "bbc", "abc", "aba"),
        ("ab", "ab", "abb", "aaa,bbb,..b"),
        ("abb", "ab", "abb", "aaa,bbb,b.b"),
        ("abc", "adc", "aec", "aaa,bde"),
    ],
)
def test_a_working_ends_at_the_first_place_at_which_the_answers_differ(right, first, second, working):
    assert study.working_of(right, first, second) == working


def test_the_judge_is_taught_right_verdicts_about_single_mistakes_in_both_orders(tmp_path):
    tasks = list(load_tasks("characters", ("kinds=sort6", "count=300")))
    dialogues = [each["messages"] for each in study.judge_dialogues(tasks)]
    assert len(dialogues) == 600 and json.dumps(dialogues) == json.dumps(
        [each["messages"] for each in study.judge_dialogues(tasks)]
    )
    for number, (asked, said) in enumerate(dialogues):
        question, first, second = asked["content"].removesuffix(">").split("|")
        letters = question.removeprefix("Qs").removesuffix("=")
        answers = {"A": first.removeprefix("A"), "B": second.removeprefix("B")}
        working, _, verdict = said["content"].partition(";")
        other = {"A": "B", "B": "A"}[verdict]
        assert verdict == "AB"[number % 2]
        assert answers[verdict] == "".join(sorted(letters)) != answers[other]
        assert abs(len(answers[other]) - 6) <= 1
        *same, last = working.split(",")
        assert all(len(set(place)) == 1 for place in same) and last[1] != last[2]
        assert last[0] == last["AB".index(verdict) + 1]
    lengths = {len(asked["content"]) for asked, _ in dialogues}
    assert lengths == {25, 26, 27}  # a letter is missing, another one, or there twice


def test_the_summary_holds_every_run_on_both_sets_and_gains_over_the_start():
    shares = {"accuracy": 0.5, "both_right": 0.25, "ties": 0.125, "unparsable": 0.0, "first": 0.75, "pairs": 400}
    base = {f"{name}/{key}": value for name in study.SETS for key, value in shares.items()} | {"greedy": 0.5}
    base["avg@4"] = 0.375
    found = {}
    for run, config in run_configs(study.STUDY, "runs").items():
        gained = {"fixed/accuracy": 0.625} if run.endswith("_with") else {}
        records = [{"step": 1, "refinement/accuracy": 0.5, "refinement/both_right": 0.25}]
        found[run] = RunResult(config, records, 0, base | gained)
    lines = study.summarize(found).markdown.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    by_name = {(row[0], row[1]): row[2:] for row in rows[2:]}
    assert len(by_name) == 6
    with_loop = by_name["RL with closed loop", "pairs of the start"]
    assert with_loop[:2] == ["0.625 (0.625 to 0.625)", "+12.5 (+12.5 to +12.5)"]
    assert with_loop[-1] == "none"  # no pair of two lengths
    assert by_name["RL without closed loop", "own pairs"][1] == "+0.0 (+0.0 to +0.0)"
