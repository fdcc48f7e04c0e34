"""Character problems: right by other arithmetic, distinct, and held out by content."""

import re

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.errors import UserError
from k2jax.tasks.characters.dataset import CharacterTasks, final_answer
from k2jax.tasks.characters.teacher import (
    CHECK_MARK,
    checked_demonstrations,
    checked_solution,
    demonstrations,
    pretraining_texts,
    solution,
    style_of,
)

KINDS = st.sampled_from(["add1", "add3", "sub3", "sum2", "sum6", "sort6", "rev4"])


def answered(kind: str, prompt: str) -> str:
    """The answer by Python's own arithmetic and sorting."""
    text = prompt.removesuffix("=")
    if kind.startswith("sort"):
        return "".join(sorted(text[1:]))
    if kind.startswith("rev"):
        return text[:0:-1]
    return str(eval(text))


def equations_hold(working: str) -> bool:
    return all(eval(left) == int(right) for left, right in re.findall(r"([0-9+-]+)=(-?[0-9]+)", working))


@given(KINDS, st.integers(0, 1000), st.sampled_from(["train", "test"]))
def test_answers_and_workings_are_right(kind, seed, split):
    for task in CharacterTasks((kind,), 3, seed, split).load():
        prompt = task.instruction[0]["content"]
        assert task.metadata["answer"] == answered(kind, prompt)
        assert (task.domain, task.metadata["kind"]) == (kind, kind)
        assert equations_hold(task.metadata["working"])
        letters = [step.partition(":")[0] for step in task.metadata["working"].split(",")]
        if kind.startswith("sort"):  # each step takes the smallest letter
            assert task.metadata["answer"].startswith("".join(letters))


def test_a_tenth_of_all_problems_is_held_out():
    tasks = [len(load_tasks("characters", ("kinds=add1", f"count={n}"), s)) for n, s in ((60, "train"), (4, "test"))]
    assert tasks == [60, 4]


@given(KINDS, st.integers(0, 99))
def test_a_solution_of_either_style_is_right_and_an_altered_one_is_not(kind, seed):
    (task,) = CharacterTasks((kind,), 1, seed).load()
    for style in ("direct", "worked"):
        text = solution(task, style)
        assert final_answer(task, text).value == 1
        assert final_answer(task, text + "0").value == final_answer(task, text + ";").value == 0
    assert final_answer(task, "").value == 0
    assert style_of(solution(task, "direct")) == "direct"
    assert (style_of(solution(task, "worked")) == "worked") == bool(task.metadata["working"])


def test_the_teacher_keeps_its_share_of_styles_and_writes_nothing_wrong():
    tasks = load_tasks("characters", ("count=2000",))
    records = list(demonstrations(tasks, direct=0.6, seed=1))
    answers = [record["messages"][1]["content"] for record in records]
    assert 0.57 < sum(style_of(answer) == "direct" for answer in answers) / 2000 < 0.63
    assert all(final_answer(task, answer).value == 1 for task, answer in zip(tasks, answers, strict=True))
    assert [record["messages"][0] for record in records] == [task.instruction[0] for task in tasks]
    assert list(demonstrations(tasks, direct=0.6, seed=1)) == records
    assert {style_of(r["messages"][1]["content"]) for r in demonstrations(tasks, direct=0)} == {"worked"}


def test_texts_of_pretraining_hold_problem_working_and_answer():
    (task,) = load_tasks("characters", ("kinds=add2", "count=1"))
    (text,) = pretraining_texts([task])
    assert text == f"{task.id.partition('/')[2]}{task.metadata['working']};{task.metadata['answer']}"


@given(st.sampled_from(["add1", "add3", "sum2", "sum6"]), st.integers(0, 999), st.integers(0, 2))
def test_checks_undo_every_sum_of_a_working_and_change_nothing_of_the_answer(kind, seed, checks):
    (task,) = CharacterTasks((kind,), 1, seed).load()
    text = checked_solution(task, checks)
    assert final_answer(task, text).value == 1 and equations_hold(text)
    working, *subtractions = text.rpartition(";")[0].split("?")
    assert working == task.metadata["working"] and len(subtractions) == checks
    sums = [re.fullmatch(r"(\d+)\+(\d+)(\+1)?=(\d+)", step).groups("") for step in working.split(",")]
    for number, steps in enumerate(subtractions):
        for (first, second, carry, total), step in zip(sums, steps.split(","), strict=True):
            less, left = (second, first) if number == 0 else (first, second)
            assert step == f"{total}-{less}{carry.replace('+', '-')}={left}"


def test_the_checking_teacher_keeps_its_shares_and_refuses_what_it_cannot_check():
    tasks = load_tasks("characters", ("kinds=add3", "count=2000"))
    records = list(checked_demonstrations(tasks, (0.2, 0.3, 0.5), seed=1))
    answers = [record["messages"][1]["content"] for record in records]
    shares = np.bincount([answer.count(CHECK_MARK) for answer in answers], minlength=3) / 2000
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.035)  # three standard deviations
    assert all(final_answer(task, answer).value == 1 for task, answer in zip(tasks, answers, strict=True))
    assert list(checked_demonstrations(tasks, (0.2, 0.3, 0.5), seed=1)) == records
    with pytest.raises(UserError, match="three that sum to 1"):
        next(checked_demonstrations(tasks, (0.2, 0.3, 0.6)))
    with pytest.raises(UserError, match=r"task 'sort4/.*' holds no sum"):
        list(checked_demonstrations(load_tasks("characters", ("kinds=sort4", "count=1")), (0, 1, 0)))
