"""What is counted within answers, such as instructions: pooled over tasks, with errors clustered by task."""

import pytest

from k2jax.agents.task import Task
from k2jax.evaluate.scores import Price, score_suite
from k2jax.evaluate.statistics import clustered_mean
from k2jax.evaluate.suite import checked_suite
from k2jax.evaluate.suite_run import JudgedAnswer
from k2jax.trajectory.types import ITEMS

WHOLE = {"parts": {}, "cut": False, "messages": [], "prompt_tokens": 1, "tokens": 1, "likelihood": None, "seconds": 0.0}
WHOLE |= {"text": "", "tries": 1}


def answered(task, sample, marks, failure=""):
    info = {} if marks is None else {ITEMS: {"strict": marks}}
    score = float(bool(marks) and all(marks))
    return JudgedAnswer(task=task, sample=sample, digest="", score=score, info=info, failure=failure, **WHOLE)


def test_items_are_pooled_over_tasks_and_those_without_a_verdict_are_wrong():
    tasks = [
        Task(name, "d", (), "ifeval", metadata={"instructions": [0] * count}) for name, count in (("a", 3), ("b", 1))
    ]
    marks = {"a": [[True, True, False], None], "b": [[True], [False]]}
    answers = {(name, sample): answered(name, sample, each, "" if each else "machine")
               for name, both in marks.items() for sample, each in enumerate(both)}  # fmt: skip
    scores = score_suite(checked_suite({"samples": 2, "temperature": 1.0}), tasks, answers, Price()).scores
    assert scores["items/strict"].value == pytest.approx(3 / 8) and scores["items/strict"].samples == 8
    assert scores["items/strict"] == clustered_mean([1, 1, 0, 0, 0, 0, 1, 0], "aaaaaabb")
    assert scores["accuracy"].value == 1 / 4
