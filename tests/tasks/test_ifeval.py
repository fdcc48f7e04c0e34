"""IFEval's instructions: texts that do and do not follow each, the four accuracies, and the original's verdicts.

The test marked external needs ``pip install lm-eval langdetect nltk immutabledict py3langid``: lm-eval carries the
original's checkers.
"""

import json
import random
import sys
from types import ModuleType
from unittest import mock

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.agents.registry import oracles
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.ifeval import checks
from k2jax.tasks.ifeval.checks import CHECKS, VALUES
from k2jax.tasks.ifeval.verifier import ifeval
from k2jax.trajectory.types import ITEMS

CASES = [
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"},
     "A WELL-MADE b", "A b"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi. Hi", "Hi. say hi."),
    ("combination:two_responses", {}, "one\n******\ntwo", "one******one"),
    ("combination:two_responses", {}, "******one******two", "one******two******three"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a] [b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\np. s. y", "PS y"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "x P.P.S y", "P.S. y"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1\nSECTION 2",
     "SECTION 1\nSECTION x"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n - b", "* a\n** b\n- c\n- d"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* *b*", "*a* * *"),
    ("detectable_format:title", {}, "<<a>>", "<< >>"),
    ("keywords:existence", {"keywords": ["bird", "c++"]}, "Birds like C++", "Birds like C"),
    ("keywords:forbidden_words", {"forbidden_words": ["bird"]}, "birds", "a Bird."),
    ("keywords:frequency", {"keyword": "bird", "frequency": 2, "relation": "less than"}, "bird", "birds, Bird"),
    ("keywords:letter_frequency", {"letter": "B", "let_frequency": 2, "let_relation": "at least"}, "Bb", "b"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "yes"},
     "a\n\n'Yes, b", "yes\n\na"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\na\n***\nb", "a\n***\n\n***\nb"),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, "One by Mr. Xu. Two? So",
     "One by Mr. Xu, e.g. here. Two."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two.", "one-two three"),
    ("punctuation:no_comma", {}, "one; two", "one, two"),
    ("startend:end_checker", {"end_phrase": "The end."}, 'So. "THE END."', "The end. So"),
    ("startend:quotation", {}, ' "a" ', '"'),
]  # fmt: skip
OF_LANGUAGES = {"change_case:english_capital", "change_case:english_lowercase", "language:response_language"}


def task(*pairs, mode="strict"):
    return Task("1", "ifeval", ({"role": "user", "content": "?"},), "ifeval",
                metadata={"instructions": [list(pair) for pair in pairs], "mode": mode})  # fmt: skip


@pytest.mark.parametrize(("name", "values", "follows", "fails"), CASES)
def test_a_text_follows_an_instruction_or_does_not(name, values, follows, fails):
    assert CHECKS[name](follows, values) and not CHECKS[name](fails, values)
    assert values.keys() == VALUES.get(name, {}).keys()


def test_all_instructions_are_there_and_languages_are_those_that_are_found(monkeypatch):
    assert {case[0] for case in CASES} | OF_LANGUAGES == CHECKS.keys() and len(CHECKS) == 25
    found = ModuleType("py3langid")
    found.classify = lambda text: ("en" if text == "the birds" else "de", -1.0)
    with mock.patch.dict(sys.modules, {"py3langid": found}):
        assert CHECKS["change_case:english_capital"]("THE BIRDS", {})
        assert not CHECKS["change_case:english_capital"]("The Birds", {})
        assert CHECKS["change_case:english_lowercase"]("the birds", {})
        assert not CHECKS["change_case:english_lowercase"]("die vögel", {})
        assert CHECKS["language:response_language"]("die Vögel", {"language": "de"})
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(UserError, match="pip install py3langid"):
        ifeval(task(["language:response_language", {"language": "de"}]), "ja")


def test_the_accuracies_are_strict_and_loose_by_prompt_and_by_instruction():
    both = (["punctuation:no_comma", {}], ["startend:end_checker", {"end_phrase": "end"}])
    reward = ifeval(task(*both), "Sure: **the end**")
    assert reward.value == 0.0 and reward.parts == {"strict": 0.0, "loose": 1.0}
    assert reward.info[ITEMS] == {"strict": [True, False], "loose": [True, True]}
    assert ifeval(task(*both, mode="loose"), "Sure:\nthe end\nBye").value == 1.0
    assert ifeval(task(*both), " ").info[ITEMS]["loose"] == [False, False]


def test_records_of_the_published_form_are_tasks_and_others_are_refused(tmp_path):
    path = tmp_path / "input_data.jsonl"
    null = {"num_words": None, "relation": None, "num_bullets": None}
    record = {"key": 1000, "prompt": "Write.", "instruction_id_list": ["length_constraints:number_words"],
              "kwargs": [null | {"num_words": 300.0, "relation": "at least"}]}  # fmt: skip
    path.write_text(json.dumps(record))
    [read] = load_tasks("ifeval", (f"path={path}",), "all")
    assert read.id == "1000" and read.instruction[0]["content"] == "Write."
    given = {"num_words": 300, "relation": "at least"}
    assert read.metadata["instructions"] == [["length_constraints:number_words", given]]
    for change, why in (({"kwargs": [null]}, "is no task"), ({"instruction_id_list": ["a:b"]}, "unknown instruction")):
        path.write_text(json.dumps(record | change))
        with pytest.raises(UserError, match=why):
            load_tasks("ifeval", (f"path={path}",), "all")


def test_the_oracle_follows_every_instruction_alone():
    for name, values, *_ in CASES:
        solved = oracles.get("ifeval")(task([name, values]), [])
        assert ifeval(task([name, values]), solved["content"]).value == 1.0, name


def test_long_answers_take_time_in_proportion():
    for text in ("[" * 50_000, "*" * 50_000, " " * 50_000 + "x", "p." * 30_000, "<<" * 30_000, "a. " * 20_000):
        for name, values, *_ in CASES:
            assert CHECKS[name](text, values) in (True, False), name


PIECES = ["bird", "Bird,", "BIRD", "[a]", "*b*", "**c**", "* d\n", "- e\n", "\n\n", "***", "******", "<<t>>", "P.S.",
          "p.p.s", "SECTION 1", "Section 2", '"', "My answer is yes.", "The end.", "Yes", "b", "\n", "{", "}",
          "1"]  # fmt: skip


@pytest.mark.external
def test_verdicts_are_the_originals():
    with mock.patch("nltk.download", lambda *args, **options: True), mock.patch("nltk.data.find", lambda *a, **k: "."):
        from lm_eval.tasks.ifeval.utils import (
            InputExample,
            test_instruction_following_loose,
            test_instruction_following_strict,
        )
    rng, left_out = random.Random(0), {"change_case:capital_word_frequency", "length_constraints:number_sentences"}
    judged, followed = 0, 0
    for name, values, *texts in CASES:
        if name in left_out or "c++" in values.get("keywords", ()):  # nltk's models; a keyword that is no expression
            continue
        drawn = [
            "".join(rng.choice(PIECES) + rng.choice(["", " "]) for _ in range(rng.randint(1, 9))) for _ in range(300)
        ]
        for text in [*texts, *drawn]:
            example = InputExample(1, [name], "?", [dict(values)])
            strict, loose = test_instruction_following_strict, test_instruction_following_loose
            expected = [how(example, text).follow_all_instructions for how in (strict, loose)]
            reward = ifeval(task([name, values]), text)
            assert [reward.parts["strict"], reward.parts["loose"]] == expected, (name, text)
            judged, followed = judged + 1, followed + expected[0]
    assert judged > 5000 and 0.05 < followed / judged < 0.95


@pytest.mark.external
def test_languages_are_found():
    for code, text in (("en", "the birds sing in the garden"), ("de", "die Vögel singen im Garten und im Wald")):
        assert checks.language_of(text) == code and checks.language_of(text.upper()) == code
