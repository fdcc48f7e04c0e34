"""Placement of images on devices: every chunk once, within the rows, and even work, also where rows are full."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config.presets import vision_preset
from k2jax.data.best_fit import best_fit
from k2jax.data.images.image_rows import fit_two_budgets
from k2jax.data.images.placement import PatchRows, chunk_load, place_chunks
from tests.refusal import refused

VISION = vision_preset("nano_vision")


def loads(own, shape, vision=VISION):
    """Work of each device, after a check that every chunk is in one row and fits."""
    sizes = [size for row in own for size in row]
    filled = place_chunks(own, shape, vision)
    assert len(filled) == shape.rows and sorted(i for row in filled for i in row) == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in row) <= shape.length for row in filled)
    rows = [sum(chunk_load(sizes[i], vision) for i in row) for row in filled]
    return np.array(rows).reshape(shape.devices, -1).sum(1)


def test_work_of_devices_is_balanced_where_no_chunk_is_larger_than_the_mean():
    rng = np.random.default_rng(0)
    for _ in range(20):
        own = [[int(size) * 4 for size in rng.integers(1, 40, 24)] for _ in range(16)]
        sums = loads(own, PatchRows(16, 16, 4096, 8))
        assert sums.max() / sums.mean() <= 1.05


@pytest.mark.parametrize(("devices", "rows"), [(8, 1), (8, 2), (64, 2), (16, 4)])
def test_work_is_balanced_where_images_fill_the_rows(devices, rows):
    rng, length, vision = np.random.default_rng(0), 8192, vision_preset("moonvit")
    drawn = np.clip(rng.lognormal(np.log(700), 0.5, devices * rows * 16) // 4 * 4, 16, 4096).astype(int)
    full = fit_two_budgets(np.ones(len(drawn), int), drawn, 10**6, length)[: devices * rows]
    own = [drawn[row].tolist() for row in full]
    assert sum(map(sum, own)) >= 0.95 * devices * rows * length
    sums = loads(own, PatchRows(len(own), len(own), length, devices), vision)
    theirs = np.array([sum(chunk_load(size, vision) for size in row) for row in own]).reshape(devices, -1).sum(1)
    assert max(chunk_load(size, vision) for row in own for size in row) <= sums.mean()
    assert sums.max() / sums.mean() <= 1.05 < theirs.max() / theirs.mean()


@given(st.data())
def test_as_many_rows_as_have_images_hold_them_however_full(data):
    devices = data.draw(st.sampled_from([1, 2, 4]))
    full = st.lists(st.integers(1, 16).map(lambda n: 4 * n), max_size=8).filter(lambda row: sum(row) <= 64)
    seen = data.draw(st.lists(full, max_size=2 * devices))
    own = data.draw(st.permutations([*seen, *[[]] * 5]))
    loads(own, PatchRows(len(own), 2 * devices, 64, devices))


def test_more_full_rows_than_there_is_room_for_are_one_line():
    with refused(r"the images of 3 rows of tokens fill 3 rows of patches, and there are 2"):
        place_chunks([[64], [], [64], [64]], PatchRows(4, 2, 64, 1), VISION)


@given(st.data())
def test_rows_of_tokens_that_fill_several_rows_of_patches_have_room(data):
    """Whatever ``fit_two_budgets`` packs is placed, were all rows as full."""
    sizes = st.integers(1, 16).map(lambda n: 4 * n)
    chunks = data.draw(st.lists(st.lists(sizes, min_size=1, max_size=6), min_size=1, max_size=9))
    chunks = [own for own in chunks if len(best_fit(own, 64)) <= 3] or [[64]]
    patches, count = np.array([sum(own) for own in chunks]), len(chunks)
    rows = fit_two_budgets(np.ones(count, int), patches, 4, 64, each=3, chunks=chunks.__getitem__)
    assert sorted(number for row in rows for number in row) == list(range(count))
    assert max(map(len, rows)) <= 4 and len(rows) <= count
    own = [[size for number in row for size in chunks[number]] for row in rows]
    loads(own, PatchRows(len(own), 3 * len(own), 64, len(own), 3))


def test_conversations_join_in_all_rows_of_patches_of_a_row_of_tokens():
    chunks = [[40, 40]] * 4 + [[24]] * 8
    patches = np.array([sum(own) for own in chunks])
    rows = fit_two_budgets(np.ones(12, int), patches, 99, 64, each=2, chunks=chunks.__getitem__)
    assert [[len(chunks[number]) for number in row] for row in rows] == [[2, 1, 1]] * 4
    whole = fit_two_budgets(np.ones(12, int), patches, 99, 128)
    assert len(whole) == 4  # as one long row
    # One by one they fit, and the largest chunk of both first would leave no room for the last.
    unlucky = [[24, 28, 16], [32, 12, 16]]
    apart = fit_two_budgets(np.array([46, 40]), np.array([68, 60]), 99, 64, each=2, chunks=unlucky.__getitem__)
    assert apart == [[0], [1]]


def test_what_fits_in_one_way_alone_is_placed_in_it():
    own = [[60, 4], [36, 28], [36, 28]]
    filled = place_chunks(own, PatchRows(3, 3, 64, 3), VISION)
    assert sorted(map(sorted, filled)) == [[0, 1], [2, 3], [4, 5]]
    # The largest first would leave no room for the last; rows of text are among them.
    beside = place_chunks([[], [24, 20, 20], [], [36, 28]], PatchRows(4, 2, 64, 2), VISION)
    assert sorted(map(sorted, beside)) == [[0, 1, 2], [3, 4]]
    several = place_chunks([[60, 4, 36, 28], [], [36, 28, 24, 20, 20]], PatchRows(3, 4, 64, 4, 2), VISION)
    assert sorted(map(sorted, several)) == [[0, 1], [2, 3], [4, 5], [6, 7, 8]]
