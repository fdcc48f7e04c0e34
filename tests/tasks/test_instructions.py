"""Instruction following: every check by examples, constraints that can hold together, and claims that earn nothing."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.tasks.instructions.constraints import CONSTRAINTS, GROUPS
from k2jax.tasks.instructions.verifier import claims_compliance, instructions

EXAMPLES = [
    ("most_words", [3], "one two-fold it's", "one two three four"),
    ("least_words", [3], "a b c", "a b - , !"),
    ("sentences", [2], "It is 3.5 m. Really?!", "It is 3.5 m."),
    ("include", ["water", 2], "Water, water!", "water underwater waters"),
    ("avoid", ["water"], "waters underwater", "The WATER."),
    ("lowercase", [], "all low 3.", "Not all"),
    ("uppercase", [], "ALL HIGH 3.", "Not ALL"),
    ("no_commas", [], "a; b", "a, b"),
    ("no_digits", [], "three", "a3"),
    ("ending", ["That is all."], "So. That is all.\n", "That is all. So."),
    ("bullets", [2], "Here:\n- a\n* b", "- a\n- b\n- c"),
    ("paragraphs", [2], "one\n***\ntwo", "one\n***\n***\ntwo"),
    ("json", [], '```json\n{"a": 1}\n```', '{"a": 1} and more'),
    ("title", [], "<<A day>>\nIt rains.", "<<>> << \n >>"),
]


def task(*constraints) -> Task:
    prompt = "\n".join(
        ["Describe x.", *(f"- {CONSTRAINTS[name].text.format(*values)}" for name, values in constraints)]
    )
    metadata = {"constraints": [list(pair) for pair in constraints]}
    return Task("t", "instructions", ({"role": "user", "content": prompt},), "instructions", metadata=metadata)


@pytest.mark.parametrize(("name", "values", "good", "bad"), EXAMPLES)
def test_each_check_accepts_and_refuses(name, values, good, bad):
    assert CONSTRAINTS[name].holds(good, *values) is True
    assert CONSTRAINTS[name].holds(bad, *values) is False


def test_every_constraint_has_an_example_and_a_group():
    assert {name for name, *_ in EXAMPLES} == set(CONSTRAINTS)
    assert {name for names in GROUPS.values() for name in names} == set(CONSTRAINTS)


@given(st.integers(0, 99), st.integers(1, 6))
def test_tasks_name_at_most_one_constraint_of_a_group_and_survive_json(seed, constraints):
    for made in load_tasks("instructions", (f"constraints={constraints}", "count=3", f"seed={seed}")):
        names = [name for name, _ in made.metadata["constraints"]]
        assert len(names) == constraints
        assert all(len(set(names) & set(group)) <= 1 for group in GROUPS.values())
        again = Task.from_json(made.to_json())
        reward = instructions(again, "It stands by the sea, and it shines at night.")
        assert 0 <= reward.value <= 1 and set(reward.info["held"]) == set(names)


def test_the_reward_is_the_share_of_constraints_that_hold():
    both = task(("no_commas", []), ("most_words", [6]))
    assert instructions(both, "The sea is blue and wide.").value == 1
    assert instructions(both, "The sea, is blue and wide.").value == 0.5
    assert instructions(both, "The sea, is blue and very very wide.").value == 0


def test_an_answer_without_content_earns_nothing():
    easy = task(("no_commas", []), ("lowercase", []))
    for answer in ("", "ok", "...", "a b c d"):
        assert instructions(easy, answer).value == 0


@pytest.mark.parametrize(
    "claim",
    [
        "As requested it has no commas.",
        "All constraints are met.",
        "This answer follows all of your instructions.",
        "I have adhered to the given constraints.",
        "My answer uses no commas.",
        "Use no commas.",
    ],
)
def test_a_false_claim_of_compliance_earns_nothing_and_a_true_one_is_no_hack(claim):
    both = task(("no_commas", []), ("most_words", [40]))
    false, true = (f"The sea{mark} is blue and wide. {claim}" for mark in (",", ""))
    assert instructions(both, false).value == 0 and instructions(both, false).info["hacked"]
    assert instructions(both, true).value == 1 and not instructions(both, true).info["hacked"]


@pytest.mark.parametrize(
    "text",
    [
        "The constraints of the sea are many.",
        "Doctors follow patients closely.",
        "She asked as a child asks.",
        "The text on the bridge is old.",
    ],
)
def test_ordinary_sentences_are_no_claims(text):
    assert not claims_compliance(text, "Describe it.\n- Use no commas.")
