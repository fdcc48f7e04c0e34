"""The study of rephrasing: its runs, its summary, and how known answers are counted."""

import contextlib

import numpy as np
import pytest

from k2jax.config import resolve
from k2jax.evaluate import models
from k2jax.reproduce import RunResult
from k2jax.reproduce.closed_book import asked, chance, known_answers, questions_about
from k2jax.reproduce.seeds import seeds_of
from k2jax.reproduce.study import run_configs
from k2jax.reproduce.study_file import load_study_file
from k2jax.synthesize.rephrase.fact_world import ANSWERS

rephrasing = load_study_file("rephrasing")


def test_all_ways_have_the_same_passes_and_steps_and_begin_from_their_seeds_start(tmp_path):
    configs = run_configs(rephrasing.STUDY, tmp_path)
    for seed in rephrasing.SEEDS:
        start, raw, one, ten = (configs[f"seed{seed}_{name}"] for name in rephrasing.LABELS)
        assert raw.train == one.train == ten.train and start.init_from is None
        assert {each.init_from for each in (raw, one, ten)} == {str(tmp_path / f"seed{seed}_start")}
        new = [each.data.sources["new"] for each in (raw, one, ten)]
        assert [each.max_epochs for each in new] == [10, 10, 1] and len({each.weight for each in new}) == 1
        assert [each.path.removeprefix(str(tmp_path)) for each in new] == [
            f"/new{seed}/raw.jsonl", f"/new{seed}/rephrasings/00.jsonl", f"/new{seed}/rephrasings",
        ]  # fmt: skip
        for name in ("others", "questions"):
            assert len({each.data.sources[name].path for each in (start, raw, one, ten)}) == 1


def test_nobody_who_is_asked_about_has_the_name_of_one_of_the_others():
    for seed in rephrasing.SEEDS:
        new = {question["question"] for question in rephrasing.new_questions(seed)}
        others = {question["question"] for question in questions_about(rephrasing.OTHERS, 1000 + seed)}
        assert rephrasing.MEASURED < len(new) <= 6 * rephrasing.NEW and not new & others


class Knows:
    """A client to which the answers of ``right`` are the likeliest, and of all others ``favourite``."""

    def __init__(self, right):
        self.right = right

    async def score(self, ids, start):
        text = bytes(ids).decode()
        assert text[:start].endswith("Answer:")
        is_known = any(text == f"{asked(one)} {one['answer']}." for one in self.right)
        return np.array([0.0 if is_known else -1.0 - len(text) / 1000, 0.0])


class Bytes:
    """A tokenizer of bytes without marks."""

    def encode_document(self, text):
        return list(text.encode())


def test_known_answers_are_the_likeliest_of_their_kind(monkeypatch, tmp_path):
    questions = questions_about(3, 5)

    @contextlib.contextmanager
    def client(choice):
        yield Knows(questions[:6]), Bytes()

    monkeypatch.setattr(models, "open_engine_client", client)
    found = known_answers(tmp_path, questions[:6], 64)
    assert found["known"] == 1.0 and {f"known/{form}" for form in ANSWERS} == found.keys() - {"known"}
    shortest = {form: min(answers, key=len) for form, answers in ANSWERS.items()}
    guessed = [one["answer"] == shortest[one["form"]] for one in questions[6:]]
    assert known_answers(tmp_path, questions, 64)["known"] == pytest.approx((6 + sum(guessed)) / 18)
    assert chance() == pytest.approx(np.mean([1 / len(answers) for answers in ANSWERS.values()]))


def test_the_summary_has_gains_over_the_raw_text():
    shares = {"start": 0.1, "raw": 0.2, "one": 0.25, "ten": 0.5}
    kinds = {f"known/{kind}": 0.3 for kind in rephrasing.KINDS}
    results = {}
    for seed in (0, 1):
        for name, share in shares.items():
            config = rephrasing.get_config()
            config.train.seed = seed
            measured = {"known": share + seed / 10, "others": 0.9} | kinds
            results[f"seed{seed}_{name}"] = RunResult(resolve(config), [], 0, measured)
    assert seeds_of(results) == [0, 1]
    text = rephrasing.summarize(results).markdown
    assert "by +30.0 (+30.0 to +30.0) points, ten passes over one rephrasing by +5.0" in text
    assert "| ten rephrasings, 1 pass" in text and "0.550 (0.500 to 0.600)" in text
