"""Problems of mathematics from files and the hub, and equality of their answers as expressions."""

import json

import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.errors import UserError
from k2jax.tasks.mathematics.dataset import final_answer_of
from k2jax.tasks.mathematics.verifier import math


@pytest.fixture
def problems(tmp_path):
    file = tmp_path / "problems.jsonl"
    records = [
        {"question": f"What is {n} + {n}?", "answer": f"{n}+{n} = <<2*{n}>>\n#### {2 * n:,}"} for n in range(990, 1090)
    ]
    file.write_text("\n".join(map(json.dumps, [*records, records[0]])))
    return file


def test_a_file_is_divided_into_disjoint_splits_with_the_final_answers(problems):
    train, test = (load_tasks("math", (f"path={problems}",), split) for split in ("train", "test"))
    assert len(train) + len(test) == 100 and 3 <= len(test) <= 20
    assert not {t.instruction[0]["content"] for t in train} & {t.instruction[0]["content"] for t in test}
    for task in train + test:
        number = int(task.instruction[0]["content"].split()[2])
        assert task.metadata["answer"] == str(2 * number)
        assert math(task, f"It is \\boxed{{{2 * number}}}.").value == 1
        assert math(task, f"It is \\boxed{{{2 * number + 1}}}.").value == 0


def test_a_data_set_of_the_hub_loses_training_problems_that_are_in_its_test_split(monkeypatch):
    import datasets

    records = {"train": [{"q": "a", "a": "1"}, {"q": "b", "a": "2"}], "test": [{"q": "b", "a": "2"}]}
    monkeypatch.setattr(
        datasets, "load_dataset", lambda hub, subset: records if (hub, subset) == ("x/y", "main") else 0
    )
    options = ("hub=x/y", "subset=main", "question=q", "answer=a")
    loaded = {split: load_tasks("math", options, split) for split in ("train", "test")}
    assert {split: [task.metadata["answer"] for task in tasks] for split, tasks in loaded.items()} == {
        "train": ["1"],
        "test": ["2"],
    }
    assert len(load_tasks("math", options, "all")) == 2
    records = {"train": [{"q": str(n), "a": "1"} for n in range(200)], "validation": [{"q": "v", "a": "2"}]}
    train, test, every = (load_tasks("math", options, split) for split in ("train", "test", "all"))
    assert len(train) + len(test) == len(every) == 201 and 5 < len(test) < 40
    records = {"validation": records["validation"], "test": records["validation"]}
    with pytest.raises(UserError, match="x/y has no split train, only validation, test"):
        load_tasks("math", options)
    with pytest.raises(UserError, match="cannot read other"):
        load_tasks("math", ("hub=other",))


@pytest.mark.parametrize(
    ("right", "answer", "value"),
    [
        ("1/2", r"\boxed{\frac{1}{2}}", 1),
        ("1/2", r"\boxed{0.5}", 1),
        ("1/2", r"\boxed{\frac{1}{3}}", 0),
        ("42", r"\boxed{41} no, \boxed{42}", 1),
        ("42", r"\boxed{42} no, \boxed{41}", 0),
        ("42", r"\boxed{41, 42}", 0),
        ("42", "42", 0),
        ("42", r"\boxed{}", 0),
        ("42", r"\boxed{42", 0),
        ("42", "", 0),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}", 1),
        ("x^2 - 1", r"\boxed{(x-1)(x+1)}", 1),
        ("1000", r"\boxed{1{,}000}", 1),
        ("42", "\\boxed{" + "0" * 400 + "42}", 0),
    ],
)
def test_answers_are_compared_as_expressions_and_only_the_last_box_counts(right, answer, value):
    task = Task("t", "math", ({"role": "user", "content": "?"},), "math", metadata={"answer": right})
    assert math(task, answer).value == value


FINAL_ANSWERS = [
    ("so\n#### 1,234", "1234", "1234"),
    ("#### $1,234,567.50", "$1234567.50", "1234567.5"),
    ("#### (3, 5)", "(3, 5)", "(3,5)"),
    ("#### 3, 5", "3, 5", "3,5"),
    ("#### (1,234, 5)", "(1234, 5)", "(1234,5)"),
    ("#### (1,234)", "(1,234)", None),
    ("#### 12,34", "12,34", "12,34"),
    ("#### 5\nThanks", "5", "5"),
    ("####\n5", "5", "5"),
    ("#### **5**", "5", "5"),
    ("#### Step 2\nSo \\boxed{5}", "5", "5"),
    ("\\boxed{4} or\n#### 5", "5", "5"),
    ("thus \\boxed{\\frac{1}{2}} holds", "\\frac{1}{2}", "0.5"),
    ("thus \\fbox{1,000}", "1000", "1000"),
    (" 7 ", "7", "7"),
    ("{1, 2}", "{1, 2}", "\\{1,2\\}"),
]


@pytest.mark.parametrize(("solution", "final", "equal"), FINAL_ANSWERS)
def test_final_answers_are_found_in_solutions_and_only_commas_that_group_digits_are_left_out(solution, final, equal):
    assert final_answer_of(solution) == final
    if equal is not None:
        task = Task("t", "math", ({"role": "user", "content": "?"},), "math", metadata={"answer": final})
        assert math(task, f"\\boxed{{{equal}}}").value == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "line 1 .* no JSON object"), ('{"question": "a"}', "record 1 .* has no"), ("[1]", "no JSON object")],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, content, message):
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        load_tasks("math", (f"path={file}",))


def test_a_missing_source_is_refused():
    with pytest.raises(UserError, match=r"cannot read /no/such\.jsonl: No such file"):
        load_tasks("math", ("path=/no/such.jsonl",))
    with pytest.raises(UserError, match="give either"):
        load_tasks("math", ())
