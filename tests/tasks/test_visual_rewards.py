"""Rewards of visual tasks against rapidfuzz, shapely and all assignments, and answers that are malformed or hostile."""

import itertools
import time

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein
import shapely

from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.tasks.pictures.verifier import (
    LONGEST,
    MOST_SHAPES,
    SIGMA,
    THOUSAND,
    box_f1,
    count_closeness,
    edit_distance,
    point_f1,
    polygon_iou,
    text_similarity,
)

WORDS = st.text("abcé🧑", max_size=8)
COORDINATE = st.integers(0, THOUSAND)
BOX = st.tuples(*[COORDINATE] * 4).map(lambda e: [*map(min, e[:2], e[2:]), *map(max, e[:2], e[2:])])
BOXES = st.lists(BOX, max_size=4)
POINT = st.tuples(COORDINATE, COORDINATE)
POINTS = st.lists(POINT, max_size=4)


def around(points):
    """Points in the order of their angles around their mean: a polygon that does not cross itself."""
    x, y = np.mean(points, axis=0)
    return sorted(points, key=lambda point: np.arctan2(point[1] - y, point[0] - x))


CORNERS = st.lists(POINT, min_size=3, max_size=7).map(around)


def array(items, numbers):
    return np.array(items, float).reshape(-1, numbers)


def best_f1(wanted, given, weight):
    """By trying every assignment."""
    few, many = sorted((wanted, given), key=len)
    if not many:
        return 1.0
    orders = itertools.permutations(many, len(few))
    return 2 * max(sum(map(weight, few, order)) for order in orders) / (len(few) + len(many))


def overlap(a, b):
    one, other = shapely.box(*a), shapely.box(*b)
    union = one.union(other).area
    return one.intersection(other).area / union if union else 0.0


def reward(kind, truth, answer):
    found = verifiers.get(f"visual_{kind}")(Task("t", "d", (), "", metadata={"truth": truth}), answer)
    return found.value, found.info.get("malformed", "")


@given(a=WORDS, b=WORDS)
def test_the_edit_distance_and_similarity_are_those_of_rapidfuzz(a, b):
    assert edit_distance(a, b) == Levenshtein.distance(a, b)
    assert text_similarity(a, b) == pytest.approx(Levenshtein.normalized_similarity(a, b))


@settings(deadline=None)
@given(wanted=BOXES, answered=BOXES)
def test_boxes_are_assigned_as_well_as_possible(wanted, answered):
    assert box_f1(array(wanted, 4), array(answered, 4)) == pytest.approx(best_f1(wanted, answered, overlap), abs=1e-9)


@settings(deadline=None)
@given(wanted=POINTS, answered=POINTS)
def test_points_are_assigned_as_well_as_possible(wanted, answered):
    weight = lambda a, b: np.exp(-((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) / (2 * SIGMA**2))  # noqa: E731
    assert point_f1(array(wanted, 2), array(answered, 2)) == pytest.approx(best_f1(wanted, answered, weight))


@settings(deadline=None, max_examples=60)
@given(wanted=CORNERS, answered=CORNERS)
def test_polygons_overlap_as_shapely_says_but_for_the_cells_of_the_grid(wanted, answered):
    one, other = shapely.Polygon(wanted), shapely.Polygon(answered)
    assume(one.is_valid and other.is_valid)
    side = 500
    union = one.union(other).area
    assume(union > 2e4)
    edges = (one.length + other.length) * THOUSAND / side  # area of the cells that an edge may cross
    found = polygon_iou(array(wanted, 2), array(answered, 2), side)
    assert found == pytest.approx(one.intersection(other).area / union, abs=2 * edges / union)


def test_a_polygon_that_crosses_itself_is_even_odd_and_a_line_holds_nothing():
    bow = array([(0, 0), (1000, 1000), (1000, 0), (0, 1000)], 2)
    left = array([(0, 0), (500, 500), (0, 1000)], 2)
    assert polygon_iou(bow, left) == pytest.approx(0.5, abs=0.01)
    star = array([(500 + 480 * np.sin(k * 0.8 * np.pi), 500 - 480 * np.cos(k * 0.8 * np.pi)) for k in range(5)], 2)
    middle = star.mean(0) + array([(-20, -20), (20, -20), (20, 20), (-20, 20)], 2)
    assert polygon_iou(star, middle) == 0
    assert polygon_iou(left, array([(0, 0), (500, 500)], 2)) == polygon_iou(bow[:2], bow[:2]) == 0


def test_counts_are_worth_less_with_every_one_missing():
    assert [count_closeness(4, given) for given in (4, 5, 2, 8, 9)] == [1, 0.75, 0.5, 0, 0]
    assert [count_closeness(0, given) for given in (0, 1)] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "truth", "right", "half"),
    [
        ("boxes", [[0, 0, 100, 100]], "[0,0,100,100]", "[0,0,100,50]"),
        ("points", [[10, 20], [900, 900]], " [900, 900] [10,20]\n", "[10,20],[100,800]"),
        ("polygon", [[0, 0], [500, 0], [500, 500], [0, 500]], "[0,0,500,0,500,500,0,500]", "[0,0,500,0,500,250,0,250]"),
        ("click", [[100, 200, 300, 260]], " click(300, 200)\n", None),
        ("words", "tomo", "tomo\n", "toXX"),
        ("count", 4, " 4", "2"),
        ("count", 4, "012/344=4\n", "002/2=2"),
    ],
)
def test_every_kind_has_a_right_answer_one_that_is_half_right_and_malformed_ones(kind, truth, right, half):
    assert reward(kind, truth, right) == (1.0, "")
    if half is None:  # a click hits or does not
        assert [reward(kind, truth, f"click({x},{y})") for x, y in ((301, 230), (200, 199), (0, 0))] == [(0.0, "")] * 3
    else:
        assert reward(kind, truth, half) == (pytest.approx(0.5, abs=0.17 if kind == "boxes" else 0.02), "")
    if kind == "words":
        assert reward(kind, truth, "")[0] == 0
        return
    outside = ("[0,0,2000,2000]", "click(1001,5)", "[-1,0,5,5]", "-1")
    for answer in (
        "about",
        "[1,2",
        "[1,2,3]",
        "4 shapes",
        *outside,
        "1e3",
        "٤ ٤",
        "4=",
        "click(1,2) click(1,2)",
        "Four=4",
        "1=2=4",
    ):
        value, reason = reward(kind, truth, answer)
        assert value == 0 and reason, (answer, reason)


def test_no_boxes_are_no_malformed_answer_and_a_box_that_ends_before_it_begins_is_one():
    assert reward("boxes", [[0, 0, 9, 9]], "") == (0.0, "")
    assert reward("boxes", [], " ") == (1.0, "")
    assert reward("boxes", [[0, 0, 9, 9]], "[9,0,0,9]")[1] == "a box ends before it begins"


@pytest.mark.parametrize("kind", ["boxes", "points", "polygon", "words", "count", "click"])
@pytest.mark.parametrize(
    "answer",
    [
        "[" * LONGEST,
        "9" * LONGEST,
        "x" * 10**6,
        "[1,2,3,4]" * 10**5,
        "[0,0,9,9]" * (MOST_SHAPES + 1),
        "[1" + " ," * 4000,
    ],
    ids=["brackets", "digits", "a megabyte", "boxes", "too many", "blanks"],
)
def test_hostile_answers_are_worth_nothing_and_cost_little(kind, answer):
    box, corners = [[0, 0, 9, 9]], [[0, 0], [9, 0], [9, 9]]
    truth = {"words": "tomo", "count": 4, "boxes": box, "click": box}.get(kind, corners)
    began = time.process_time()
    value, reason = reward(kind, truth, answer)
    assert value < 0.01 and time.process_time() - began < 5
    assert reason or len(answer) <= LONGEST


@settings(max_examples=200)
@given(kind=st.sampled_from(["boxes", "points", "polygon", "count"]), answer=st.text("[]0123456789, \n-x", max_size=40))
def test_any_answer_has_a_reward_between_0_and_1(kind, answer):
    truth = 3 if kind == "count" else [[0, 0, 9, 9]] if kind == "boxes" else [[0, 0], [90, 0], [90, 90]]
    assert 0 <= reward(kind, truth, answer)[0] <= 1
