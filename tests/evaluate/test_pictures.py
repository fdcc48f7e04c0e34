"""Scores of answers about pictures against definitions by enumeration, and the questions that are asked."""

import functools
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.data.images.synthetic import synthetic_sample
from k2jax.evaluate.pictures import edit_distance, exchanged, score_answer, soft_f1

WORDS = st.text("abc", max_size=6)
EDGES = st.tuples(*[st.integers(0, 6)] * 4).map(
    lambda e: [min(e[0], e[1]), min(e[2], e[3]), max(e[:2]) + 1, max(e[2:]) + 1]
)
BOXES = st.lists(EDGES, max_size=4)


@settings(max_examples=50, deadline=None)
@given(a=WORDS, b=WORDS)
def test_the_edit_distance_is_that_of_its_recursive_definition(a, b):
    @functools.cache
    def distance(i, j):
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert edit_distance(a, b) == distance(len(a), len(b))


def overlap(a, b):
    """IoU by counting the unit squares of two boxes."""
    cells = [{(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])} for box in (a, b)]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


@settings(max_examples=50, deadline=None)
@given(wanted=BOXES, given_boxes=BOXES)
def test_soft_f1_takes_the_best_of_all_assignments(wanted, given_boxes):
    few, many = sorted((wanted, given_boxes), key=len)
    best = max(sum(map(overlap, few, order)) for order in itertools.permutations(many, len(few)))
    expected = 2 * best / (len(few) + len(many)) if few else float(not many)
    found = soft_f1(*(np.array(boxes, float).reshape(-1, 4) for boxes in (wanted, given_boxes)))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["read", "count", "locate"])
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
