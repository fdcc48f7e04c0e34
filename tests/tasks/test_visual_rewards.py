"""Rewards of visual tasks against rapidfuzz, shapely and all assignments, and answers that are malformed or hostile."""

import functools
import itertools
import random
import time

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein
import shapely

from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.drawings.labels import THOUSAND
from k2jax.errors import UserError
from k2jax.tasks.pictures.measures import (
    SIGMA,
    box_f1,
    count_closeness,
    edit_distance,
    point_f1,
    polygon_iou,
    text_similarity,
)
from k2jax.tasks.pictures.verifier import LONGEST, LONGEST_TRUTH, MOST_SHAPES

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


def box(left, top, right, bottom):
    return shapely.box(left, top, right if right > left else left + 1, bottom if bottom > top else top + 1)


def overlap(a, b):
    one, other = box(*a), box(*b)
    union = one.union(other).area
    return one.intersection(other).area / union if union else 0.0


def reward(kind, truth, answer, **metadata):
    found = verifiers.get(f"visual_{kind}")(Task("t", "d", (), "", metadata={"truth": truth, **metadata}), answer)
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


def ring(corners):
    return f"[{','.join(str(number) for corner in corners for number in corner)}]"


@settings(deadline=None, max_examples=60)
@given(wanted=st.lists(CORNERS, min_size=1, max_size=3), answered=st.lists(CORNERS, min_size=1, max_size=3))
def test_polygons_of_several_rings_overlap_as_shapely_says(wanted, answered):
    shapes = []
    for rings in (wanted, answered):
        polygons = [shapely.Polygon(corners) for corners in rings]
        assume(all(polygon.is_valid for polygon in polygons))
        shapes.append(functools.reduce(shapely.symmetric_difference, polygons))  # even-odd: parts and holes
    union = shapely.union(*shapes).area
    assume(union > 1000)
    expected = shapely.intersection(*shapes).area / union
    value, reason = reward("polygon", wanted, "".join(map(ring, answered)))
    assert (value, reason) == (pytest.approx(expected, abs=5e-3), "")


SQUARE, HOLE = [[0, 0], [900, 0], [900, 900], [0, 900]], [[300, 300], [600, 300], [600, 600], [300, 600]]


@pytest.mark.parametrize(
    ("truth", "answer", "value"),
    [
        ([SQUARE, HOLE], ring(SQUARE) + ring(HOLE), 1),
        ([SQUARE, HOLE], ring(SQUARE), 8 / 9),
        (SQUARE, ring(SQUARE), 1),
        ([[0, 0], [1000, 0], [1000, 1], [0, 1]], "[0,0,1000,0,1000,1,0,1]", 1),  # thinner than a cell of a grid
        ([[0, 0], [1000, 0], [1000, 1], [0, 1]], "[0,0,500,0,500,1,0,1]", 0.5),
        ([[0, 0], [9, 9], [5, 5]], "[0,0,9,9,5,5]", 1),  # without area
        ([[0, 0], [9, 9], [5, 5]], "[0,0,9,9,4,4]", 0),
    ],
)
def test_truths_with_holes_thin_ones_and_those_without_area_have_their_overlap(truth, answer, value):
    assert reward("polygon", truth, answer) == (pytest.approx(value), "")


def test_a_distance_is_as_many_pixels_along_as_across_and_its_deviation_is_the_tasks():
    width, height = 1120, 112
    along, across = (round(500 + 30 / side * 1000) for side in (width, height))
    worth = lambda x, y, **more: reward("points", [[500, 500]], f"[{x},{y}]", size=[width, height], **more)[0]  # noqa: E731
    pixels = 30 / np.sqrt(width * height) * 1000
    assert worth(along, 500) == pytest.approx(worth(500, across), rel=0.05)  # rounded
    assert worth(along, 500) == pytest.approx(np.exp(-(pixels**2) / (2 * SIGMA**2)), rel=0.05)
    assert worth(along, 500, sigma=2 * SIGMA) == pytest.approx(worth(along, 500) ** 0.25)
    assert reward("points", [[500, 500]], "[500,550]")[0] == pytest.approx(np.exp(-0.5))


@pytest.mark.parametrize("truth", [[5, 5, 5, 5], [5, 5, 5, 9], [1000, 0, 1000, 1000]])
def test_equal_boxes_without_area_overlap_wholly_and_others_not(truth):
    assert reward("boxes", [truth], f"{truth}") == (1.0, "")
    assert reward("boxes", [truth], "[600,600,600,600]") == (0.0, "")


@pytest.mark.parametrize(
    ("truth", "answer"), [(" A b\n", "A b"), (" A b\n", " A b\n"), ("cafe\u0301", "caf\u00e9"), ("x", "\tx")]
)
def test_blanks_around_texts_and_forms_of_unicode_do_not_count(truth, answer):
    assert reward("words", truth, answer) == (1.0, "")


def test_long_texts_are_compared_within_the_time_of_a_verdict():
    rng = random.Random(0)
    truth, other = ("".join(rng.choices("abcdefg ", k=LONGEST + 5000)) + "." for _ in range(2))
    began = time.process_time()
    assert reward("words", truth, truth) == (1.0, "")
    assert reward("words", truth, other)[0] == pytest.approx(Levenshtein.normalized_similarity(truth, other), abs=0.01)
    assert time.process_time() - began < 4
    with pytest.raises(UserError, match="divide the document"):
        reward("words", "x" * (LONGEST_TRUTH + 1), "x")


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
