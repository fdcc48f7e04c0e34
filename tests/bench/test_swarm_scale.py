"""The benchmark of the agent swarm, small: what it measures is what it says."""

import pytest

from k2jax.bench import swarm as bench


def test_assignments_of_one_answer_are_measured_beside_the_longest():
    row = bench.assignments_row(1, seconds=0.01)
    assert 0 < row.baseline <= row.ours and row.ratio == pytest.approx(row.baseline / row.ours)


def test_orchestrators_share_an_event_loop():
    result = bench.run_scale(orchestrators=3, answer=0.02)
    assert result.assigned == result.finished >= 6 and 1 <= result.peak <= bench.LIVE <= 20
    assert result.peak <= result.live <= result.assigned and 0 <= result.lag.p50 <= result.lag.p99
    assert bench.scale_row(result).baseline == 100.0
