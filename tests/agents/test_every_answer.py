"""No answer is masked: whatever a policy writes, every built-in function verifier says what it is worth."""

import asyncio
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents import Task
from k2jax.agents.dataset import load_tasks
from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.verifier import FAILED
from k2jax.agents.verifier_pool.pool import VerifierPool

PROMPT = ({"role": "user", "content": "?"},)
BOX = [[1, 2, 30, 40]]


def task(verifier, **metadata):
    return Task("t", "d", PROMPT, verifier, metadata=metadata)


TASKS = {
    "math": task("math", answer="42"),
    "answer_line": task("answer_line", answer=42),
    "final_answer": task("final_answer", answer="42"),
    "ifeval": task(
        "ifeval", mode="loose",
        instructions=[["keywords:existence", {"keywords": ["lamps", "birds"]}],
                      ["length_constraints:number_sentences", {"num_sentences": 1, "relation": "at least"}],
                      ["detectable_content:number_placeholders", {"num_placeholders": 0}]],
    ),
    "instructions": task(
        "instructions", constraints=[["sentences", [2]], ["bullets", [2]], ["paragraphs", [2]], ["json", []],
                                     ["title", []], ["include", ["water", 2]], ["ending", ["That is all."]]]
    ),
    "item_f1": task("item_f1", table=[["a", "1"], ["b", "2"]]),
    "known_verdict": task("known_verdict", format="chat", verdict="first", lengths=[1, 1]),
    "lookups": task("lookups", keys=["b", "a"], store={"a": "1", "b": "c", "c": "2"}),
    "visual_boxes": task("visual_boxes", truth=BOX),
    "visual_click": task("visual_click", truth=BOX),
    "visual_count": task("visual_count", truth=3),
    "visual_points": task("visual_points", truth=[[1, 2]]),
    "visual_polygon": task("visual_polygon", truth=[[0, 0], [0, 9], [9, 9]]),
    "visual_words": task("visual_words", truth="a right text"),
}  # fmt: skip
NEED_MORE = {"faithfulness", "ifbench", "reasoning_gym"}
"""Verifiers whose tasks come from packages, or name a trained judge (tests/tasks/test_faithfulness.py)."""
DEEP = 10**5
FORMS = ("{}", r"\boxed{{{}}}", "Answer: {}", "<answer>{}</answer>", ";{}", "<<{}>>", "- {}", "a|{}", "[{}]")
CONTENTS = (
    "", "9" * 10**5, "1e999999999", "1E+99999999999999999999", "-" * 300, "nan", "Infinity", "[" * DEEP, '{"a":' * DEEP,
    "{" * DEEP + "}" * DEEP, "[]," * 10**6, "\\" * DEEP, "%" * 290, "|" * DEEP, ",1" * DEEP, "4\x002", "\ud800\udfff",
    "\U0001d7dc\U0001d7da", "x" * (1 << 20), " " * (1 << 20) + "!", "a-" * DEEP, "a." * DEEP, "\n* " * DEEP,
    "***\n" * DEEP, "<<" * DEEP, "\n" * DEEP + "x", "\u0130" * 1000, "." * DEEP + "x", "'" * DEEP, "1/0",
    r"\frac{1}{0}", r"\text{" * 50, r"\begin{pmatrix}" * 15, r"\{" + "1," * 140,
)  # fmt: skip
ENDLESS = (
    r"9^{9^{9^{9}}}", r"10^{10^{10}}", "10000000!", r"(99!)!", r"\prod_{i=1}^{10^{8}} (i+\sqrt{i})",
    r"\int_0^{\infty} \frac{\sin(x^7) e^{-x^3}}{\ln(x^2+\sqrt{x}+1)} dx", r"\binom{10^{9}}{10^{8}}",
    "7" * 140 + "^{" + "9" * 100 + "}", r"(1+\sqrt{2})^{100000}", "(x+y+z+a+b+c)^{200}", r"\Gamma(10^{7}+\frac{1}{2})",
    r"\log_{2}(3^{10^{7}})", r"3^{10^{9}} \mod 7", "(1+i)^{10^{6}}", r"\cos^{1000}(x) + \sin^{1000}(x)",
)  # fmt: skip
"""Expressions that SymPy does not finish."""


@pytest.fixture(scope="module")
def pool():
    with VerifierPool(workers=2, timeout=1.0, retries=0) as pool:
        yield pool


def rewards(pool, task, answers):
    async def judged():
        return await asyncio.gather(*(pool.score_answer(task, answer) for answer in answers))

    return asyncio.run(judged())


def test_every_function_verifier_is_tried_here_and_says_that_it_judges_every_answer():
    names = {name for name in verifiers.names() if not isinstance(verifiers.get(name), type)}
    assert names == TASKS.keys() | NEED_MORE
    assert all(hasattr(verifiers.get(name), "control") for name in names)


@pytest.mark.parametrize("name", TASKS)
def test_a_control_answer_is_worth_1_or_has_content_that_is_judged(pool, name):
    control = verifiers.get(name).control
    (reward,) = rewards(pool, TASKS[name], [control.answer(TASKS[name])])
    assert FAILED not in reward.info and reward.value == (1.0 if name != "instructions" else reward.value)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "math"])
def test_hostile_answers_have_a_reward(pool, name):
    answers = [form.format(content) for form in FORMS for content in (CONTENTS if form == "{}" else CONTENTS[:4])]
    found = rewards(pool, TASKS[name], answers)
    assert all(0 <= reward.value < 1 and math.isfinite(reward.value) for reward in found)
    assert not any(FAILED in reward.info for reward in found), "a simple verifier has a verdict on everything"


def test_hostile_boxes_are_worth_nothing(pool):
    answers = [rf"\boxed{{{content}}}" for content in (*CONTENTS, ENDLESS[0])]
    assert [reward.value for reward in rewards(pool, TASKS["math"], answers)] == [0.0] * len(answers)


@pytest.mark.slow
def test_expressions_without_an_end_are_worth_nothing(pool):
    found = rewards(pool, TASKS["math"], [rf"\boxed{{{content}}}" for content in ENDLESS])
    assert [reward.value for reward in found] == [0.0] * len(ENDLESS)
    assert sum(FAILED in reward.info for reward in found) > len(ENDLESS) // 2


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60), st.sampled_from(FORMS), st.sampled_from([name for name in TASKS if name != "math"]))
def test_any_text_has_a_reward(pool, content, form, name):
    (reward,) = rewards(pool, TASKS[name], [form.format(content)])
    assert 0 <= reward.value <= 1 and FAILED not in reward.info


REASONING = {
    "prime_factorization": "no number", "game_of_life": '{"a": 1}', "boxnet": "[1]", "simple_integration": "9**9**9**9",
    "n_queens": "9**9**9**9",
}  # fmt: skip
"""Generators of reasoning-gym whose scores fail on an answer."""


@pytest.mark.slow
@pytest.mark.parametrize("generator", REASONING)
def test_answers_that_break_a_score_of_reasoning_gym_are_worth_nothing(pool, generator):
    [puzzle] = load_tasks("reasoning_gym", (f"generators={generator}", "count=1"))
    (reward,) = rewards(pool, puzzle, [f"<answer>{REASONING[generator]}</answer>"])
    assert reward.value == 0 and FAILED in reward.info


def test_a_task_that_no_answer_can_be_judged_on_masks_the_sample(pool):
    with pytest.raises(VerifierError, match="control answer"):
        rewards(pool, task("ifeval", mode="strict", instructions=[["no:such", {}]]), ["x"])
