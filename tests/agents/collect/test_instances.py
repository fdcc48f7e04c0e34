"""The ratio of engines between roles: it follows the work, moves one at a time, and does not swing."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.agents.collect.instances import MEMORY, InstanceRatio, RoleLoad, shared_instances, work_of
from k2jax.bench.instances import ENGINES, play


def test_work_is_what_runs_and_what_waits_in_engines():
    assert work_of(RoleLoad(4, 0.5, 24.0), 16) == 3.5
    assert work_of(RoleLoad(3, 0.0, 0.0), 16) == 0


@settings(max_examples=15)
@given(st.lists(st.just(0.0) | st.floats(0.1, 30), min_size=2, max_size=3), st.integers(0, 9), st.integers(1, 32))
def test_the_ratio_comes_to_that_of_a_steady_load_and_stays(work, more, slots):
    """Queues hold what the engines of a role do not have room for."""
    ratio = InstanceRatio([1 + more, *[1] * (len(work) - 1)], slots)
    engines, path = sum(ratio.instances), []
    for _ in range(60 + 4 * engines):
        now = ratio.instances
        loads = [RoleLoad(n, min(1.0, w / n), max(0.0, w - n) * slots) for n, w in zip(now, work, strict=True)]
        path.append(ratio.review(loads))
        assert sum(path[-1]) == engines and min(path[-1]) >= 1
        assert sum(abs(a - b) for a, b in zip(now, path[-1], strict=True)) in (0, 2)
    assert path[-1] == path[-9] == shared_instances(engines, work, path[-1])


def test_one_wave_of_requests_moves_nothing():
    ratio, calm, wave = InstanceRatio([4, 4], 16), RoleLoad(4, 0.5, 0), RoleLoad(4, 0.7, 8)
    for _ in range(9):
        assert ratio.review([calm, calm]) == [4, 4]
    assert ratio.review([calm, wave]) == [4, 4] == ratio.review([calm, calm]) and 0 < MEMORY < 1
    assert [ratio.review([calm, RoleLoad(4, 1.0, 60)]) for _ in range(4)][-1][1] > 4


def test_simulated_swarms_end_whatever_the_ratio_and_one_that_follows_finds_a_better_one():
    fixed = [play(count, follows=False, episodes=80) for count in (1, ENGINES // 2, ENGINES - 1)]
    ours = play(ENGINES // 2, follows=True, episodes=80)
    assert ours == play(ENGINES // 2, follows=True, episodes=80)
    assert ours.seconds < 0.8 * fixed[1].seconds < fixed[2].seconds
    for each in (ours, *fixed):
        assert all(0 < share <= 1 + 1e-9 for share in each.busy) and each.ratios[0] in (1, 4, 7)
    assert fixed[0].busy[0] > fixed[-1].busy[0] and np.ptp([each.seconds for each in fixed]) > 0
    steps = np.diff(ours.ratios)
    assert set(np.abs(steps)) == {1} and all(len(each.ratios) == 1 for each in fixed)


def test_every_role_keeps_an_engine_and_all_have_to_be_there():
    assert shared_instances(4, [0.0, 9.0], [1, 3]) == [1, 3]
    with pytest.raises(ValueError, match="at least one engine"):
        shared_instances(4, [1.0, 1.0], [4, 0])
