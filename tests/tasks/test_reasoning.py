"""Tasks of reasoning-gym: every generator, the same in every process, and no code from answers."""

from fractions import Fraction
import json

import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.errors import UserError
from k2jax.tasks.reasoning_gym.generate import generate
from k2jax.tasks.reasoning_gym.json_values import from_json_values, to_json_values
from k2jax.tasks.reasoning_gym.verifier import EVALUATED, PARSED_BY_SYMPY, may_be_scored, reasoning_gym

NO_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Puzzles with many solutions, for which the package writes none as its answer."""


@pytest.fixture(scope="module")
def every():
    return load_tasks("reasoning_gym", ("count=105", "seed=11"))


def test_all_generators_give_a_task_whose_own_answer_scores_one_and_whose_empty_answer_does_not(every):
    from reasoning_gym.factory import DATASETS

    assert {task.metadata["generator"] for task in every} == set(DATASETS) - {"composite"}
    for task in every:
        name, answer = task.metadata["generator"], task.metadata["entry"]["answer"]
        assert Task.from_json(task.to_json()) == task
        for empty in ("", "<answer></answer>", "<answer> </answer>", "I do not know."):
            assert reasoning_gym(task, empty).value == 0, name
        if answer is None:
            assert name in NO_ORACLE
        else:
            assert reasoning_gym(task, f"<answer>41</answer> rather\n<answer>\n{answer}\n</answer>.").value == 1, name


def test_tasks_are_the_same_in_every_process_whatever_its_hash_seed(every, monkeypatch):
    names = ("polynomial_multiplication", "isomorphic_strings", "ransom_note", "word_ladder", "knight_swap")
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    again = load_tasks("reasoning_gym", (f"generators={'+'.join(names)}", "count=5", "seed=11"))
    assert again == [task for name in names for task in every if task.metadata["generator"] == name]


def generated(*generators, count, seed=0, level=-1, split="train"):
    """Tasks that are made in this process: to start another one takes longer than most of them."""
    request = {"generators": list(generators), "count": count, "seed": seed, "level": level, "split": split}
    return list(generate(request))


def test_a_generator_gives_more_puzzles_than_its_size():
    tasks = generated("list_functions", count=700)
    assert len({task.instruction[0]["content"] for task in tasks}) == 700


def test_a_puzzle_in_which_the_package_divides_by_zero_is_passed_over():
    tasks = generated("basic_arithmetic", seed=5000015, count=260)
    places = [int(task.id.rpartition("/")[2]) for task in tasks]
    assert len(tasks) == 260 and 278 not in places and max(places) > 278


def test_levels_make_puzzles_harder_and_held_out_puzzles_are_others():
    prompts = {}
    for level in (0, 3):
        for split in ("train", "test"):
            tasks = generated("spell_backward", "number_sorting", count=40, level=level, split=split)
            prompts[level, split] = {task.instruction[0]["content"] for task in tasks}
            assert len(prompts[level, split]) == 40
            assert {task.domain for task in tasks} == {"algorithmic"}
        assert not prompts[level, "train"] & prompts[level, "test"]
    assert sum(map(len, prompts[3, "train"])) > 1.2 * sum(map(len, prompts[0, "train"]))


@pytest.mark.parametrize(
    ("generator", "level", "message"),
    [
        ("composite", -1, "no generator 'composite'"),
        ("acre", 1, "no generator with levels 'acre'"),
        ("number_sorting", 99, "has the levels 0 to [0-9]+, not 99"),
    ],
)
def test_what_the_package_does_not_have_is_refused(generator, level, message):
    with pytest.raises(UserError, match=message):
        generated(generator, level=level, count=1)


@pytest.mark.parametrize(
    ("option", "message"),
    [("generators=number_sortin", "no generator 'number_sortin'; did you mean 'number_sorting'"),
     ("count=0", "must be positive")],
)  # fmt: skip
def test_a_mistake_is_one_line_of_the_process_that_generates(option, message):
    with pytest.raises(UserError, match=message) as caught:
        load_tasks("reasoning_gym", (option,))
    assert "\n" not in str(caught.value)


ATTACKS = [
    "__import__('os').system('true')",
    "[x for x in ().__class__.__base__.__subclasses__()]",
    "open('/etc/passwd')",
    "(lambda: 1)()",
    "exec('1')",
    "f'{1}'",
    "x.y",
    "[1][0]",
    "eval('1')",
]


@pytest.mark.parametrize("generator", sorted(EVALUATED | PARSED_BY_SYMPY))
def test_no_answer_that_is_code_reaches_a_score_that_evaluates_it(generator):
    assert not any(may_be_scored(generator, attack) for attack in ATTACKS)
    assert not may_be_scored(generator, "  open('/etc/passwd')\n")
    assert may_be_scored(generator, "[['a', 1], [2, -3.5]]") and may_be_scored(generator, "3*x**2 + sin(x)/2")
    assert may_be_scored(generator, "__import__('os')!") == (generator in EVALUATED)


def test_every_score_that_evaluates_answers_is_known():
    """The package's sources are searched, so that a new version does not add one unseen."""
    from pathlib import Path

    import reasoning_gym

    folder = Path(reasoning_gym.__file__).parent
    calls = ("eval(answer", "parse_expr(answer", "sympify(answer", "exec(answer", "literal_eval(answer")
    files = {path.stem for path in folder.rglob("*.py") if any(call in path.read_text() for call in calls)}
    assert files == EVALUATED | PARSED_BY_SYMPY


def test_values_that_json_lacks_come_back():
    value = {"a": (1, [2.5, (None, "x")]), "b": {1: True, (2, 3): {}}, "c": {"!tuple": 1}}
    value |= {"d": [Fraction(-1, 3), {"!fraction": "1/2"}], "e": {Fraction(2): 0}}
    back = from_json_values(json.loads(json.dumps(to_json_values(value))))
    assert back == value and isinstance(back["d"][0], Fraction)
    with pytest.raises(TypeError, match="set has no form"):
        to_json_values({"a": {1}})
