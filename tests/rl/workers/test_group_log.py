"""Complete groups on disk: whole ones are there after any death, cut ones are dropped whole."""

import errno

import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.rl.workers.group_log import FOLDER, GroupLog
from k2jax.trajectory import Node, Reward, Trajectory, TrajectoryStore
from k2jax.trajectory.encoding import encode

SAMPLES = 3


def group(step: int, place: int) -> list[Trajectory]:
    made = []
    for sample in range(SAMPLES):
        trajectory = Trajectory("t", "d", (step, place, sample), status="finished", reward=Reward(sample / 2))
        tokens = np.arange(4, dtype=np.int32)
        options = {"versions": np.zeros(4, np.int64), "turn": 0, "finish": "stop"}
        trajectory.add(Node(-1, tokens, np.ones(4, bool), -np.arange(4, dtype=np.float32), **options))
        made.append(trajectory)
    return made


def test_groups_come_back_as_they_were_written_from_several_steps(tmp_path):
    log, places = GroupLog(tmp_path, SAMPLES, {}), [(1, 0), (2, 1), (1, 3), (2, 0)]
    for place in places:
        log.append(group(*place))
    log.close()
    read = GroupLog(tmp_path, SAMPLES, {}).read()
    assert set(read) == set(places)
    for place, trajectories in read.items():
        assert list(map(encode, trajectories)) == list(map(encode, group(*place)))


@pytest.mark.parametrize("cut", [1, 40, 400, 600])
def test_a_group_whose_writing_was_cut_is_dropped_whole_and_may_be_written_again(tmp_path, cut):
    log = GroupLog(tmp_path, SAMPLES, {})
    log.append(group(1, 0))
    log.append(group(1, 1))
    log.close()
    path = tmp_path / FOLDER / "1.k2t"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = GroupLog(tmp_path, SAMPLES, {})
    assert list(again.read()) == [(1, 0)]
    again.append(group(1, 1))
    again.close()
    assert list(GroupLog(tmp_path, SAMPLES, {}).read()) == [(1, 0), (1, 1)]


def test_groups_of_a_start_with_other_tasks_are_none_of_this_run_s(tmp_path):
    for name, expected in (("a", []), ("a", [(1, 0)]), ("b", []), ("a", [])):
        log = GroupLog(tmp_path, SAMPLES, {"set of tasks": name})
        assert list(log.read()) == expected
        if not expected:
            log.append(group(1, 0))
        log.close()


def test_steps_that_every_checkpoint_has_counted_are_forgotten(tmp_path):
    log = GroupLog(tmp_path, SAMPLES, {})
    for step in (1, 2, 3):
        log.append(group(step, 0))
    log.forget(lambda purpose, step: purpose == "train" and step < 3)
    assert list(log.read()) == [(3, 0)]


def test_a_full_disk_is_a_line_and_loses_no_group_that_was_written(tmp_path, monkeypatch):
    log = GroupLog(tmp_path, SAMPLES, {})
    log.append(group(1, 0))
    written = []

    def full(self, step, trajectory):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(append(self, step, trajectory))

    append = TrajectoryStore.append
    monkeypatch.setattr(TrajectoryStore, "append", full)
    with pytest.raises(UserError, match=r"log of groups .* No space left on device; make room"):
        log.append(group(1, 1))
    monkeypatch.undo()
    log.close()
    again = GroupLog(tmp_path, SAMPLES, {})
    assert list(again.read()) == [(1, 0)]
    again.append(group(1, 1))
    assert list(again.read()) == [(1, 0), (1, 1)]
