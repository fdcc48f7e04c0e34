"""Suites as data: the settings of the reports, what has no meaning, and what a suite puts before its tasks."""

import pytest

from k2jax.errors import UserError
from k2jax.evaluate.suite import checked_suite, load_suite, suite, suite_tasks
from k2jax.evaluate.votes import VOTES


@pytest.mark.parametrize(
    ("preset", "stated"),
    [
        ("k2", {"thinking": False, "max_tokens": 8 * 1024, "context": 128 * 1024, "overflow": "truncate"}),
        ("k2-agentless", {"max_tokens": 16 * 1024}),
        ("k2.5", {"temperature": 1.0, "top_p": 0.95, "context": 256 * 1024, "overflow": "fail"}),
        ("k2.5-reasoning", {"temperature": 1.0, "max_tokens": 96 * 1024, "overflow": "fail"}),
        ("k2.5-vision", {"max_tokens": 64 * 1024, "samples": 3}),
        ("k2.5-coding", {"samples": 5, "thinking": False}),
        ("k2.5-search", {"samples": 4, "steps": 100}),
        ("kat", {"samples": 3, "metrics": ("pass_hat",)}),
    ],
)
def test_presets_have_the_settings_that_the_reports_state(preset, stated):
    found = checked_suite(suite(preset).to_dict())
    assert {name: getattr(found, name) for name in stated} == stated


def test_what_a_suite_says_itself_stands_above_its_preset():
    assert suite("k2.5", samples=7, temperature=0.5).to_dict()["temperature"] == 0.5


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"samples": 0}, "config.samples must be at least 1, not 0"),
        ({"top_p": 0.0}, "config.top_p must be in"),
        ({"method": "guess"}, "config.method is 'guess'"),
        ({"metrics": ("pass",)}, "config.metrics has pass, which needs several samples"),
        ({"method": "choices", "temperature": 0.5}, "config.temperature is set, and method choices samples nothing"),
        ({"template": "text"}, "config.template is text, which is of method choices alone"),
        ({"context": 1000}, "config.context 1000 leaves no room"),
        ({"overflow": "truncate"}, "config.overflow is truncate, and config.context says at no length"),
        ({"sample": 2}, "unknown key config.sample; did you mean 'samples'"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(fields, why):
    with pytest.raises(UserError) as raised:
        checked_suite(fields)
    assert str(raised.value).startswith(why)


def test_a_system_prompt_has_the_day_and_comes_first():
    plain = load_suite("characters", count=2)
    dated = load_suite("characters", count=2, system="Today is DATE.")
    for task, same in zip(suite_tasks(dated, "", "2026-01-02"), suite_tasks(plain, "", "2026-01-02"), strict=True):
        assert task.instruction[0] == {"role": "system", "content": "Today is 2026-01-02."}
        assert task.instruction[1:] == same.instruction


def test_votes_are_final_answers_and_others_are_refused():
    assert VOTES["answer_line"]("x\nAnswer: B.\n") == "b" and VOTES["answer_line"]("B") is None
    assert VOTES["math"]("so \\boxed{1 + 1}") == "1+1" and VOTES["math"]("2") is None
    assert VOTES["final_answer"]("3+5=8;8") == "8" and VOTES["reasoning_gym"]("<answer> 4 </answer>") == "4"
    several = {"dataset": "instructions", "options": ("count=2",), "samples": 2, "metrics": ("majority",)}
    with pytest.raises(UserError, match="knows no votes of the verifier 'instructions'"):
        suite_tasks(checked_suite(several), "", "")


def test_one_sample_of_the_command_measures_no_metric_of_several():
    assert load_suite("human_eval").metrics == ("pass",)
    assert load_suite("human_eval", samples=1).metrics == ()
    assert load_suite("human_eval", samples=2).metrics == ("pass",)
    with pytest.raises(UserError, match=r"config\.metrics has majority, which needs several samples"):
        load_suite("human_eval", samples=1, metrics=("majority",))


def test_samples_of_the_command_are_for_suites_that_sample():
    assert load_suite("puzzles_letter", samples=3).samples == 1
    assert load_suite("puzzles", samples=3).samples == 3
