"""The evaluation table names one teacher for every class of tasks, or says what it lacks."""

import json

import pytest

from k2jax.config import defaults, resolve, task
from k2jax.errors import UserError
from k2jax.rl.methods import teacher_table
from k2jax.rl.methods.teacher_table import best_teachers, chosen_teachers, named_checkpoints, read_table

TABLE = {"sums": {"a": 0.9, "b": 0.3, "c": 0.95}, "sorting": {"a": 0.2, "b": 0.4, "c": 0.1}, "other": {}}


def config_of(**overrides):
    config = defaults("rl")
    del config.rl.tasks.characters
    config.rl.tasks.sums, config.rl.tasks.sorting = task(), task()
    config.update_from_flattened_dict({"rl.distill.weight": 1.0, "rl.distill.teachers": ("a=x", "b=y/z"), **overrides})
    return resolve(config)


def test_every_class_gets_the_best_of_the_runs_own_teachers(tmp_path):
    """Teacher ``c`` of the table is none of the run's."""
    file = tmp_path / "table.json"
    file.write_text(json.dumps(TABLE))
    assert chosen_teachers(config_of(**{"rl.distill.table": str(file)}), tmp_path) == {"sums": "a", "sorting": "b"}
    assert best_teachers(TABLE, ["sums"], ["a", "b", "c"], file) == {"sums": "c"}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"sums": {"a": 1, "b": 0}}, "has no class of tasks 'sorting'"),
        ({"sums": {"a": 1, "b": 0}, "sorting": {"a": 1}}, "no accuracy of the teacher 'b' in the class 'sorting'"),
        ({"sums": {"a": 1, "b": float("nan")}, "sorting": {"a": 1, "b": 0}}, "no accuracy of the teacher 'b' in"),
        ({"sums": {"a": 1, "b": 0}, "sorting": {"a": 0.5, "b": 0.5}}, r"teachers a and b are equally good .* \(0.5\)"),
        ({"sums": 1}, "is no evaluation table"),
        ({"sums": {"a": "good", "b": 0}}, "is no evaluation table"),
        ([1], "is no evaluation table"),
        (None, "cannot be read"),
        ("{", "is not JSON"),
    ],
)
def test_what_a_table_lacks_is_said_in_one_line(tmp_path, table, words):
    file = tmp_path / "table.json"
    if table is not None:
        file.write_text(table if isinstance(table, str) else json.dumps(table))
    with pytest.raises(UserError, match=words) as raised:
        chosen_teachers(config_of(**{"rl.distill.table": str(file)}), tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("teachers", "words"),
    [(("a",), "an entry is NAME=CHECKPOINT"), (("=x",), "NAME=CHECKPOINT"), (("a=x", "a=y"), "two teachers 'a'")],
)
def test_teachers_are_names_and_checkpoints(teachers, words):
    assert named_checkpoints(("a=runs/x=1", "b=y")) == {"a": "runs/x=1", "b": "y"}
    with pytest.raises(UserError, match=words):
        named_checkpoints(teachers)


def test_a_table_is_measured_once_and_may_be_edited(tmp_path, monkeypatch):
    """A tie stops the run; the file that it leaves is read when the run is started again."""
    asked = []

    def measured(config, teachers):
        asked.append(sorted(teachers))
        return {"sums": {"a": 0.5, "b": 0.5}, "sorting": {"a": 0.1, "b": 0.5}}

    monkeypatch.setattr(teacher_table, "measured_table", measured)
    for _ in range(2):
        with pytest.raises(UserError, match=r"raise one's number in .*teachers.json"):
            chosen_teachers(config_of(), tmp_path)
    table = read_table(tmp_path / "teachers.json")
    (tmp_path / "teachers.json").write_text(json.dumps(table | {"sums": {"a": 0.5, "b": 0.51}}))
    assert chosen_teachers(config_of(), tmp_path) == {"sums": "b", "sorting": "b"}
    assert asked == [["a", "b"]]


def test_without_held_out_tasks_nothing_is_measured():
    with pytest.raises(UserError, match=r"raise it, or set rl.distill.table"):
        teacher_table.measured_table(config_of(**{"rl.eval_prompts": 0}), {"a": "x"})
