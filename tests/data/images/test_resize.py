"""Sizes against transformers' own function and by hand; patches reassemble to the padded picture."""

from __future__ import annotations

import ast
import math
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
from PIL import Image
import transformers

from k2jax.data.images.limits import PUBLISHED, ResizeLimits
from k2jax.data.images.resize import padded_size, to_patches


def transformers_size():
    """``navit_resize`` out of its source: the module does not load without torchvision."""
    path = Path(transformers.__file__).parent / "models/kimi_k25/image_processing_kimi_k25.py"
    (function,) = (node for node in ast.parse(path.read_text()).body if getattr(node, "name", None) == "navit_resize")
    scope = {"math": math}
    exec(compile(ast.Module([function], []), str(path), "exec"), scope)
    return scope["navit_resize"]


ORACLE = transformers_size()


@given(
    height=st.integers(1, 20000),
    width=st.integers(1, 20000),
    patch=st.sampled_from([2, 14]),
    limits=st.sampled_from(PUBLISHED),
)
@example(28, 29, 14, PUBLISHED.images)  # never enlarged
@example(3584, 3584, 14, PUBLISHED.images)  # 256 x 256 patches shrink by two
@example(14 * 1024, 100, 14, PUBLISHED.images)  # a side of 1,024 patches
@example(489, 7081, 14, PUBLISHED.images)  # more patches with padding
@example(512 * 14, 32 * 14 + 13, 14, PUBLISHED.images)  # whole patches alone are counted
def test_sizes_are_those_of_transformers(height, width, patch, limits):
    inner, padded = ORACLE(height, width, patch, 2, limits.patches, limits.side)
    assert padded_size(height, width, patch, limits) == (*inner, *padded)


@given(
    height=st.integers(1, 20000),
    width=st.integers(1, 20000),
    patch=st.sampled_from([2, 14]),
    patches=st.sampled_from([4, 96, 4096]),
)
@example(height=1080, width=1920, patch=14, patches=4096)
@example(height=1024, width=1024, patch=14, patches=4096)
def test_an_image_fits_its_row_with_its_padding(height, width, patch, patches):
    free = padded_size(height, width, patch, ResizeLimits(patches))
    bound = padded_size(height, width, patch, ResizeLimits(patches, padded=patches))
    filled = [size.padded_height * size.padded_width // patch**2 for size in (free, bound)]
    assert filled[1] <= patches and (bound == free) == (filled[0] <= patches)
    if min(bound.padded_height, bound.padded_width) >= 16 * patch:  # no smaller than two steps of a side make it
        assert filled[1] >= patches * (1 - 4 / 16) ** 2 or filled[1] == filled[0]


def test_patches_reassemble_to_the_picture_with_black_on_the_right_and_below():
    rng = np.random.default_rng(0)
    padded = np.zeros((16, 8, 3), np.uint8)
    padded[:9, :6] = rng.integers(0, 256, (9, 6, 3))
    patches, rows, columns = to_patches(Image.fromarray(padded[:9, :6]), 4)
    assert (rows, columns) == (4, 2)
    expected = padded.reshape(4, 4, 2, 4, 3).transpose(0, 2, 4, 1, 3) / 127.5 - 1
    np.testing.assert_allclose(patches, expected.reshape(8, 48), atol=1e-6)


def test_shrinking_is_bicubic():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8))
    limits = PUBLISHED.images._replace(side=8)
    patches, rows, columns = to_patches(image, 4, limits)
    expected = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC), np.float32) / 127.5 - 1
    assert (rows, columns) == (8, 8)
    np.testing.assert_allclose(patches[9].reshape(3, 4, 4), expected[4:8, 4:8].transpose(2, 0, 1), atol=1e-6)
