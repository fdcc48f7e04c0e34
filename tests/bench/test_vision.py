"""The tower's benchmark: both sides compute the same images, and the mix of sizes is what it says."""

import numpy as np
import pytest

from k2jax.bench import vision as bench


def test_sizes_have_a_long_tail_and_fit_a_row():
    patches = np.array([h * w for h, w in bench.long_tailed_grids(np.random.default_rng(0), 2000)])
    assert patches.max() <= bench.LENGTH and patches.min() >= 4
    assert patches.mean() > 1.5 * np.median(patches)  # equal for sizes without a tail


@pytest.mark.slow
def test_rows_of_a_few_images(monkeypatch):
    monkeypatch.setattr(bench, "IMAGES", 3)
    monkeypatch.setattr(bench, "_emulate_devices", lambda: None)  # the devices are those of all tests of the process
    mixed, same, padding = bench.measure(rounds=1)
    assert "transformers" in mixed.baseline_name and "768 patches" in same.name
    for row in (mixed, same, padding):
        assert row.ours > 0 and row.baseline > 0
