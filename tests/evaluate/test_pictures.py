"""Scores of answers about pictures, and the questions that are asked."""

import pytest

from k2jax.data.images.synthetic import synthetic_sample
from k2jax.evaluate.pictures import exchanged, score_answer


@pytest.mark.parametrize("kind", ["read", "describe", "count", "locate"])
def test_the_exact_answer_scores_one_and_another_one_less(kind):
    some, other = (synthetic_sample(0, index, kind=kind, split="held_out") for index in (0, 4))
    assert score_answer(some, some.answer) == 1
    assert score_answer(some, other.answer) < 0.9
    assert score_answer(some, "") == 0


def test_exchanged_pictures_are_those_of_the_other_questions():
    samples = [synthetic_sample(0, index, kind="count") for index in range(3)]
    shown = exchanged(samples)
    assert [sample.image for sample in shown] == [samples[1].image, samples[2].image, samples[0].image]
    assert [sample._replace(image=None) for sample in shown] == [sample._replace(image=None) for sample in samples]
