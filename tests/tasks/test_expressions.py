"""Small programming tasks: only the right reading passes the tests, and the teacher shows what Python says."""

import json

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.scripted import said
from k2jax.tasks.expressions.dataset import FORMS, expression_demonstrations
from tests.tasks.conftest import rewards


def test_solutions_of_every_kind_earn_1_and_the_null_policy_0(check):
    tasks = [task for kind in FORMS for task in load_tasks("expressions", (f"kinds={kind}", "count=1"))]
    solved = check(tasks, oracles.get("expressions"))
    assert {task.domain for task in tasks} == set(FORMS)
    tested = [node.message["content"] for each in solved for node in each.nodes if node.message["role"] == "tool"]
    assert tested == ["True"] * len(tasks)  # the interpreter holds the example


WRONG = ("{1}", "{2}", "y", "x\ndef f(x): return 0", "__import__('os')._exit(0)", "open('/proc/1/mem')")


def test_other_readings_and_tricks_earn_nothing(play):
    tasks = load_tasks("expressions", (f"count={len(WRONG)}",))
    answers = {
        task.id: said(wrong.format(*task.metadata["readings"])) for task, wrong in zip(tasks, WRONG, strict=True)
    }
    assert rewards(play(tasks, lambda task, messages: answers[task.id])) == [0.0] * len(WRONG)


def test_the_teacher_shows_what_python_says_and_is_right_wherever_it_tests():
    tasks = load_tasks("expressions", ("count=300",))
    right = {True: [], False: []}
    for task, record in zip(tasks, expression_demonstrations(tasks, direct=0.5), strict=True):
        words, _, y = task.instruction[0]["content"].partition("=")
        names = {"x": [int(word) for word in words.split(" ")[1:]], "y": int(y)}
        messages = record["messages"]
        for call, shown in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
            cell = json.loads(call["tool_calls"][0]["function"]["arguments"])
            assert str(eval(cell, names)) == shown["content"]
        tested = [json.loads(call["tool_calls"][0]["function"]["arguments"]) for call in messages[1:-1:2]]
        assert tested == [f"{reading}==y" for reading in sorted(task.metadata["readings"])[: len(tested)]]
        right[len(messages) > 2].append(eval(messages[-1]["content"], names) == names["y"])
    assert all(right[True]) and 120 < len(right[True]) < 180
    assert 0.2 < sum(right[False]) / len(right[False]) < 0.5
