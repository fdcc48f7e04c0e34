"""The replay of a pipeline's table with the tower in its first stage, and the images that are drawn for it."""

import numpy as np
import pytest

from k2jax.bench.dep import LARGEST, drawn_rows, replay
from k2jax.parallel.schedule import build_pipeline_schedule


@pytest.mark.parametrize(("stages", "rounds", "chunks", "micro_batches"), [(2, 1, 2, 3), (4, 2, 8, 8), (4, 3, 10, 9)])
def test_without_images_a_replay_takes_as_long_as_the_schedule_says(stages, rounds, chunks, micro_batches):
    schedule = build_pipeline_schedule(stages, rounds, chunks, micro_batches)
    nothing = np.zeros(micro_batches)
    busy = micro_batches * chunks / stages * (1.0 + 3.0)
    assert replay(schedule, 1.0, 3.0, nothing, nothing) == pytest.approx(busy / (1 - schedule.bubble()))


def test_a_tick_waits_for_the_stage_that_has_images_and_only_for_what_exceeds_the_others():
    schedule = build_pipeline_schedule(2, 1, 2, 1)  # forward 0, forward 1, backward 1, backward 0
    plain = replay(schedule, 1.0, 3.0, np.zeros(1), np.zeros(1))
    assert plain == 8
    assert replay(schedule, 1.0, 3.0, np.array([0.5]), np.array([2.0])) == plain + 2.5


def test_rows_hold_the_wanted_features_and_no_more_patches_than_fit():
    rows = drawn_rows(np.random.default_rng(0), 64, 300, LARGEST)
    patches = [sum(row) for row in rows]
    assert max(patches) <= LARGEST and all(size % 4 == 0 for row in rows for size in row)
    assert 300 <= np.mean(patches) / 4 < 300 + LARGEST / 4 / 64
