"""Rows of patches: the same image gives the same features whatever shares its row; little of a row is padding."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import numpy as np

from k2jax.config import model_preset
from k2jax.config.replace import replace_keys
from k2jax.config.schema import VisionConfig
from k2jax.data.images.patch_packing import PatchChunk, fill_rows, pack_chunks, padding_waste
from k2jax.model.vision import vision_features, vision_specs
from k2jax.params import initialize
from tests.refusal import refused

PATCH, ROWS, LENGTH = 2, 2, 64
VISION = VisionConfig(layers=1, width=16, heads=2, ffn=32, patch=PATCH, grid=4)
CONFIG = replace_keys(model_preset("micro"), {"vision": VISION, "d_model": 8})


@functools.cache
def random_params():
    return initialize(vision_specs(CONFIG), jax.random.key(0), 0.2)


compiled = jax.jit(lambda params, batch: vision_features(params, batch, CONFIG).features)


def features_of(chunks):
    """Features of each chunk ``[features, d_model]``."""
    packed = pack_chunks(chunks, rows=ROWS, length=LENGTH, patch=PATCH)
    flat = np.asarray(compiled(random_params(), packed.batch)).reshape(-1, CONFIG.d_model)
    return [flat[groups] for groups in packed.features]


def chunk(grid, rng):
    return PatchChunk(rng.uniform(-1, 1, (int(np.prod(grid)), 3 * PATCH * PATCH)).astype(np.float32), grid)


even = st.integers(1, 3).map(lambda half: 2 * half)
grids = st.tuples(st.integers(1, 4), even, even).filter(lambda grid: np.prod(grid) <= LENGTH)


@settings(max_examples=8)
@given(one=grids, others=st.lists(grids, max_size=6), seed=st.integers(0, 2**31))
def test_an_image_has_the_same_features_whatever_shares_its_row(one, others, seed):
    rng = np.random.default_rng(seed)
    image = chunk(one, rng)
    (alone,) = features_of([image])
    sharing = [image]
    for grid in others:
        if len(fill_rows([c.patches for c in sharing] + [int(np.prod(grid))], LENGTH)) <= ROWS:
            sharing.append(chunk(grid, rng))
    order = rng.permutation(len(sharing))
    together = features_of([sharing[i] for i in order])[list(order).index(0)]
    assert np.abs(alone).max() > 1e-3
    np.testing.assert_allclose(together, alone, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 100), max_size=60))
def test_every_chunk_lies_in_one_row_and_no_row_overflows(sizes):
    rows = fill_rows(sizes, 100)
    assert sorted(index for row in rows for index in row) == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in row) <= 100 for row in rows)
    filled = sorted(sum(sizes[index] for index in row) for row in rows)
    assert len(filled) < 2 or filled[0] + filled[1] > 100  # otherwise the two would have shared a row


def test_groups_of_four_neighbours_are_squares_of_a_frame_and_frames_follow_one_another():
    rng = np.random.default_rng(0)
    batch = pack_chunks([chunk((2, 4, 6), rng)], rows=1, length=52, patch=PATCH).batch
    place = np.stack([batch.time[0], batch.y[0], batch.x[0]], -1)[:48].reshape(6, 2, 4, 3)
    for number, groups in enumerate(place):
        for frame, group in enumerate(groups):
            corner = np.array([frame + 1, 2 * (number // 3), 2 * (number % 3)])
            assert (group - corner).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert batch.frames[0].tolist() == [2] * 12 + [1]


def long_tailed_sizes(count):
    """Patches of photographs, icons, pages and screenshots: log-normal areas and aspects, at most 4,096 patches."""
    rng = np.random.default_rng(0)
    area = np.clip(np.exp(rng.normal(5.5, 1.3, count)), 4, 4096)
    aspect = np.exp(rng.normal(0, 0.5, count))
    height, width = (np.maximum(2, 2 * (np.sqrt(side) / 2).astype(int)) for side in (area * aspect, area / aspect))
    return (height * width).tolist()


def test_at_most_a_seventh_of_the_patches_is_padding_on_sizes_with_a_long_tail():
    """Batches of 4 rows of 4,096 take images in order until one does not fit, which waits; empty rows are padding."""
    sizes, length, rows = long_tailed_sizes(2000), 4096, 4
    batches, current = 0, []
    for size in sizes:
        if len(fill_rows([*current, size], length)) > rows:
            batches, current = batches + 1, []
        current.append(size)
    assert 1 - (sum(sizes) - sum(current)) / (batches * rows * length) <= 0.15


def test_padding_is_counted_and_images_that_do_not_fit_are_named_in_one_line():
    rng = np.random.default_rng(0)
    assert padding_waste(pack_chunks([], rows=2, length=16, patch=PATCH).batch) == 1.0
    assert padding_waste(pack_chunks([chunk((1, 2, 4), rng)], rows=2, length=16, patch=PATCH).batch) == 0.75
    with refused("has 80 patches, and a row holds 64"):
        pack_chunks([chunk((1, 8, 10), rng)], rows=2, length=64, patch=PATCH)
    with refused("3 images and chunks of video need 3 rows"):
        pack_chunks([chunk((1, 8, 8), rng)] * 3, rows=2, length=64, patch=PATCH)
