"""Augmentation moves pixels, coordinates and words alike."""

import itertools

import numpy as np
from PIL import Image
import pytest

from k2jax.data.images.augment import OPERATIONS, Augmentation, draw_augmentation, has_direction
from k2jax.drawings.labels import label_points, label_text
from tests.refusal import refused

SIDE = 200


def painted(box):
    """A dark box on white; edges in thousandths."""
    image = np.full((SIDE, SIDE, 3), 255, np.uint8)
    left, top, right, bottom = np.array(box) * SIDE // 1000
    image[top:bottom, left:right] = 0
    return Image.fromarray(image)


def box_in(image):
    """The edges of what is dark [thousandths]."""
    dark = np.asarray(image.convert("L")) < 60
    y, x = np.flatnonzero(dark.any(1)), np.flatnonzero(dark.any(0))
    return np.array([x[0], y[0], x[-1] + 1, y[-1] + 1]) * 1000 / image.size[0]


def test_to_transform_and_then_read_a_box_is_to_read_it_and_then_transform_it():
    rng = np.random.default_rng(0)
    drawn = [
        draw_augmentation(rng, OPERATIONS, square=True, directed=False, points=np.array([[300, 400], [500, 700]]))
        for _ in range(40)
    ]
    assert {a.flip for a in drawn} == {False, True} and {a.turns for a in drawn} == set(range(4))
    assert any(a.size < 1 for a in drawn) and any(a.size > 1 for a in drawn)
    for augmentation in drawn:
        box = augmentation.boxes([[300, 400, 500, 700]])[0]
        np.testing.assert_allclose(box_in(augmentation.picture(painted((300, 400, 500, 700)))), box, atol=8)


@pytest.mark.parametrize("flip, turns", itertools.product((False, True), range(4)))
def test_flips_and_turns_move_points_and_polygons_exactly_as_pixels(flip, turns):
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    picture[30:34, 120:124] = 255
    moved = np.asarray(Augmentation(flip, turns).picture(Image.fromarray(picture)))
    y, x = (axis.mean() for axis in np.nonzero(moved[..., 0]))
    point = Augmentation(flip, turns).points(np.array([[610, 160]]))[0]
    np.testing.assert_allclose((np.array([x, y]) + 0.5) * 1000 / SIDE, point, atol=1)
    polygon = {"type": "polygons", "polygons": [[610, 160, 0, 0, 1000, 0]]}
    assert f"[{point[0]},{point[1]}," in label_text(polygon, Augmentation(flip, turns))


def test_words_for_sides_are_exchanged_as_the_sides_are():
    text = "Left of the upper box, ABOVE the lower one; leftovers stay."
    assert Augmentation(flip=True).text(text) == "Right of the upper box, ABOVE the lower one; leftovers stay."
    assert Augmentation(turns=2).text(text) == "Right of the lower box, BELOW the upper one; leftovers stay."
    assert Augmentation(flip=True, turns=2).text(text) == "Left of the lower box, BELOW the upper one; leftovers stay."
    assert has_direction(text) and not has_direction("leftovers")
    rng = np.random.default_rng(0)
    for square, directed in ((False, False), (True, True)):
        drawn = [draw_augmentation(rng, ["turn"], square=square, directed=directed, points=[]) for _ in range(20)]
        assert {a.turns for a in drawn} == {0, 2}


def test_no_labelled_point_is_cut_off_and_nothing_that_is_not_permitted_happens():
    rng = np.random.default_rng(0)
    corners = np.array([[0, 0], [1000, 1000]])
    for _ in range(20):
        drawn = draw_augmentation(rng, ["crop", "light"], square=True, directed=False, points=corners)
        assert drawn.size == 1 and not drawn.flip and not drawn.turns and drawn.brightness != 1


def test_boxes_are_listed_from_left_to_right_and_malformed_labels_are_one_line():
    part = {"type": "boxes", "boxes": [[500, 0, 600, 10], [20.4, 30, 40, 50]]}
    assert label_text(part) == "[20,30,40,50][500,0,600,10]"
    assert label_text(part, Augmentation(flip=True)) == "[400,0,500,10][960,30,980,50]"
    for kind, shape in (("boxes", [1, 2, 3]), ("points", [1, 1001]), ("polygons", [1, 2, 3, 4]), ("points", ["a", 1])):
        with refused("coordinates are thousandths"):
            label_points({"type": kind, kind: [shape]})
