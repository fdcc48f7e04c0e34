"""Pictures of studies: what they are said to show is what their pixels show."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np

from k2jax.drawings.canvas import COLOURS
from k2jax.reproduce.scenes import CELL, captions, draw_scene


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), index=st.integers(0, 10**6), cells=st.sampled_from([1, 2]))
def test_the_things_of_a_picture_are_those_of_its_cells_in_reading_order(seed, index, cells):
    scene = draw_scene(seed, index, cells=cells)
    pixels, seen = np.asarray(scene.image), []
    for top in range(0, cells * CELL, CELL):
        for left in range(0, cells * CELL, CELL):
            cell = pixels[top : top + CELL, left : left + CELL]
            for colour, rgb in COLOURS.items():
                rows, columns = np.nonzero((cell == rgb).all(-1))
                if len(rows):
                    share = len(rows) / ((np.ptp(rows) + 1) * (np.ptp(columns) + 1))
                    shape = "square" if share > 0.95 else "circle" if share > 0.67 else "triangle"
                    seen.append(f"{colour} {shape}")
    assert scene.things == tuple(seen) and scene.description == ",".join(seen)


def test_captions_show_the_picture_and_say_what_it_is():
    records = list(captions(0, 3))
    for index, record in enumerate(records):
        asked, said = record["messages"]
        assert [part["type"] for part in asked["content"]] == ["image"]
        assert said["content"] == draw_scene(0, index).description
