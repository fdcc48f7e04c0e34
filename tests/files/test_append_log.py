"""One log under every record that a run keeps: a full disk loses and doubles nothing, and damage is one line."""

import pytest

from k2jax.env.verdicts import Verdict, VerdictLog
from k2jax.errors import UserError
from k2jax.trajectory import Reward
from tests.checkpoint.test_full_disk import files_end_at


def test_a_verdict_after_a_full_disk_is_not_lost(tmp_path):
    log = VerdictLog(tmp_path)
    log.append((0, 0, 0), Verdict("d", Reward(0.0)))
    [path] = tmp_path.iterdir()
    with files_end_at(path.stat().st_size + 9), pytest.raises(UserError):
        log.append((0, 0, 1), Verdict("d", Reward(1.0)))
    log.append((0, 0, 2), Verdict("d", Reward(2.0)))
    log.append((0, 0, 3), Verdict("d", Reward(3.0)))
    again = VerdictLog(tmp_path)
    assert [again.get((0, 0, sample)) is not None for sample in range(4)] == [True, False, True, True]
