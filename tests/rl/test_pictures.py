"""Tasks about drawn pictures: the exact answer to each kind of question is worth 1, and wrong ones less."""

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import verifiers
from k2jax.drawings.synthetic import KINDS, synthetic_sample
from k2jax.errors import UserError
from k2jax.tasks.pictures.dataset import data_url

WRONG = {
    "read": "",
    "describe": "",
    "count": "=999",
    "locate": "",
    "point": "",
    "outline": "[0,0,1,0,1,1]",
    "chart": "999",
    "table": "x",
    "code": "",
    "click": "click(0,0)",
}


def worth(task, answer):
    return verifiers.get(task.verifier)(task, answer).value


@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_answer_is_worth_1_and_a_wrong_one_nothing(kind):
    tasks = load_tasks("pictures", (f"kinds={kind}", "count=12"))
    samples = [synthetic_sample(0, number, kind=kind) for number in range(len(tasks))]
    answers = [sample.answer for sample in samples]
    shown = [task.instruction[0]["content"][0]["image_url"]["url"] for task in tasks]
    assert shown == [data_url(sample.image) for sample in samples]
    assert {task.domain for task in tasks} == {f"pictures/{kind}"} and len(tasks) == 12
    for task, answer in zip(tasks, answers, strict=True):
        assert worth(task, answer) == pytest.approx(1)
        assert worth(task, WRONG[kind]) == 0
        assert worth(task, "nothing") < 0.4
    others = [worth(task, answers[number - 1]) for number, task in enumerate(tasks)]
    assert sum(others) < 0.8 * len(others), "other pictures' answers are worth as much"


def test_values_of_bars_are_worth_more_the_nearer_and_names_only_themselves():
    tasks = load_tasks("pictures", ("kinds=chart", "count=12"))
    answers = [synthetic_sample(0, number, kind="chart").answer for number in range(12)]
    found = set()
    for task, answer in zip(tasks, answers, strict=True):
        found.add(task.verifier)
        if answer.isdecimal():
            values = [worth(task, str(round(int(answer) * factor))) for factor in (1, 1.3, 3)]
            assert values[0] == 1 and values[2] == 0 and values == sorted(values, reverse=True)
        else:
            assert worth(task, "A" if answer != "A" else "B") == 0
    assert found == {"visual_count", "visual_words"}


def test_kinds_that_do_not_exist_and_pictures_that_are_too_small_for_one_are_refused():
    with pytest.raises(UserError, match="did you mean"):
        load_tasks("pictures", ("kinds=cuont",))
    with pytest.raises(UserError, match="chart, click need a side of 112 and a height of 84 pixels"):
        load_tasks("pictures", ("kinds=chart+click", "side=84"))
