"""The tree that the benchmark measures, and that every benchmark can be imported."""

from importlib import import_module

import numpy as np
import pytest

from k2jax.bench.__main__ import NAMES
from k2jax.bench.kernels import pairs_saved, tree_exits


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_a_measure(name):
    assert callable(import_module(f"k2jax.bench.{name}").measure)


def test_a_tree_of_paths_and_the_pairs_it_saves():
    """By brute force: eight paths of 32 tokens that share 24 of them."""
    exits = tree_exits(24, 8, 8)
    tokens = np.arange(len(exits))
    visible = (tokens <= tokens[:, None]) & (tokens[:, None] < exits)
    leaf = visible[24 + 3 * 8 + 7]  # the last token of the fourth branch sees its own path and nothing else
    assert leaf.nonzero()[0].tolist() == [*range(24), *range(24 + 24, 24 + 32)]
    assert pairs_saved(exits, 32) == 8 * 32 * 33 / 2 / visible.sum()
    assert abs(pairs_saved(tree_exits(768, 256, 8), 1024) - 1.97) < 0.01
