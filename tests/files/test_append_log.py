"""One log under every record that a run keeps: a full disk loses and doubles nothing, and damage is one line."""

import errno
import os
from pathlib import Path
import random
import shutil
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from k2jax.agents.collect.journal import Emission, Journal, read_journal
from k2jax.agents.collect.wire_messages import RecordPlace
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.gateway.log import RolloutLogs
from k2jax.agents.verdicts import LoggedVerdict, VerdictLog
from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, ChecksummedLines, Lines, read_log
from k2jax.report.metrics import MetricsLog, read_metrics
from k2jax.trajectory import Reward, TrajectoryStore
from tests.checkpoint.test_full_disk import files_end_at
from tests.files.logs_of_users import CHECKED, USERS
from tests.trajectory.trees import chat, contents

RECORDED = Path(__file__).parent / "recorded_logs"
"""Files that the first version with checksums in all of them has written."""


def no_cut(descriptor, length):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


STEPS = st.tuples(
    st.none() | st.floats(0, 1, exclude_max=True),  # where in the record the disk is full, if it is
    st.booleans(),  # whether half a record cannot be cut off
    st.booleans(),  # whether it is read afterwards
    st.booleans(),  # whether another process goes on afterwards
)


@pytest.mark.parametrize("user", USERS)
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEPS, max_size=8))
def test_a_disk_that_fills_up_loses_and_doubles_no_record(tmp_path_factory, user, steps):
    folder, saved = tmp_path_factory.mktemp("log"), []
    path, writer = folder / user.file, user(folder, saved)
    writer.append(1)
    saved.append(1)
    least = size_of(path) // 2  # bytes of a record, of which the file's header is at most as many
    for number, (part, stuck, reads, restarts) in enumerate(steps, 2):
        room = 2**40 if part is None else size_of(path) + int(part * least)
        cut = mock.patch("os.ftruncate", no_cut) if stuck else mock.patch("os.ftruncate", os.ftruncate)
        try:
            with cut, files_end_at(room):
                writer.append(number)
            saved.append(number)
        except (OSError, UserError) as error:
            assert "\n" not in str(error) and path.name in str(error) and (part is not None or stuck)
        assert not reads or user.read(folder, saved) == saved
        if restarts:
            writer.close()
            writer = user(folder, saved)
    writer.append(99)
    assert user.read(folder, saved) == [*saved, 99]
    writer.close()


@pytest.mark.parametrize("user", USERS)
def test_a_file_that_is_cut_off_anywhere_keeps_its_whole_records_and_continues(tmp_path, user):
    writer, ends = user(tmp_path / "whole", []), []
    for number in (1, 2, 3):
        writer.append(number)
        ends.append(size_of(tmp_path / "whole" / user.file))
    writer.close()
    data = (tmp_path / "whole" / user.file).read_bytes()
    first = 32 if user.file.endswith(".k2t") else 0  # a store's header takes the place of no file at all
    near = {end + by for end in (first, *ends) for by in (-2, -1, 0, 1, 2) if first <= end + by < len(data)}
    for cut in sorted(near | set(random.Random(0).sample(range(first, len(data)), 40))):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / user.file).parent.mkdir(parents=True)
        (folder / user.file).write_bytes(data[:cut])
        kept = [number for number, end in zip((1, 2, 3), ends, strict=True) if end <= cut]
        if user.file == "metrics.jsonl" and cut + 1 in ends:  # a line lacks nothing but its newline
            kept.append(len(kept) + 1)
        assert user.read(folder, kept) == kept
        writer = user(folder, kept)
        writer.append(9)
        writer.close()
        assert user.read(folder, kept) == [*kept, 9]


@pytest.mark.parametrize("user", CHECKED)
def test_every_flipped_bit_is_one_line_that_names_its_record(tmp_path, user):
    writer, draw, path = user(tmp_path, []), random.Random(0), tmp_path / user.file
    header = {".k2t": 32, "": 8}.get(path.suffix, 0)
    begins = [header]
    for number in (1, 2):
        writer.append(number)
        begins.append(size_of(path))
    writer.close()
    data = path.read_bytes()
    for place in range(len(data) - 1):  # without the last newline, a line is one that a killed writer has left
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :])
        with pytest.raises(UserError) as error:
            user.read(tmp_path, [])
        begin = max((begin for begin in begins if begin <= place), default=0)
        assert f"{path} is damaged at byte {begin:,}:" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="is damaged at byte"):
        user(tmp_path, []).append(3)


@pytest.mark.parametrize("cut", [os.ftruncate, no_cut])
def test_records_that_are_reported_as_failed_are_not_read_and_an_interrupted_write_is_cut_off(tmp_path, cut):
    """At once, or before the next record, although the record that failed is whole."""
    log = AppendLog(tmp_path / "log", ChecksummedLines())
    log.append({"number": 1})
    write = os.write

    def interrupted(descriptor, data):
        write(descriptor, data)
        raise KeyboardInterrupt

    with mock.patch("os.write", interrupted), mock.patch("os.ftruncate", cut), pytest.raises(KeyboardInterrupt):
        log.append({"number": 2})
    log.append({"number": 3})
    assert [record["number"] for record in read_log(tmp_path / "log", ChecksummedLines())] == [1, 3]
    log.close()


@pytest.mark.parametrize("held", [True, False])
def test_a_log_has_one_writer_at_a_time_and_offsets_at_which_its_records_begin(tmp_path, held):
    path, lines = tmp_path / "folder" / "log", [b"a\n", b"bcd\n", b"e\n"]
    log = AppendLog(path, Lines(), held=held, mode=0o600)
    assert [log.append(line) for line in lines] == [0, 2, 6]
    assert path.stat().st_mode & 0o777 == 0o600
    other = AppendLog(path, Lines())
    if held:
        with pytest.raises(UserError, match="is being written by another process; stop it first"):
            other.append(b"f\n")
        log.close()
    assert other.append(b"f\n") == 8
    other.close()
    assert log.append(b"g\n") == 10
    log.close()
    assert b"".join(read_log(path, Lines())) == b"".join([*lines, b"f\n", b"g\n"])


@pytest.fixture
def recorded(tmp_path):
    return Path(shutil.copytree(RECORDED, tmp_path / "recorded"))


def test_a_gateway_s_log_of_an_earlier_version_is_read_and_continued(recorded):
    first = [{"event": "open", "text": "a b\u2028 ü\r\n"}, {"event": "close", "status": "finished", "error": ""}]
    logs = RolloutLogs(recorded / "rollouts")
    assert logs.read("a") == first
    logs.append("a", {"more": 1})
    assert logs.read("a") == [*first, {"more": 1}]
    logs.close()


def test_a_journal_of_an_earlier_version_is_read_and_continued(recorded):
    done = Emission(
        (0, 1, 2),
        "done",
        place=RecordPlace(3, 4),
        status="finished",
        reward=0.5,
        tokens=6,
        turns=7,
        calls=8,
        seconds=9.0,
    )
    masked = Emission((0, 1, 3), "masked")
    journal = Journal(recorded)
    assert journal.emissions == [done, masked]
    journal.append(done)
    assert read_journal(recorded) == [done, masked, done]
    journal.close()


def test_trajectories_of_an_earlier_version_are_read_and_continued(recorded):
    with TrajectoryStore(recorded / "trajectories") as store:
        for step in (4, 5):  # written at once, and appended
            store.append(step, chat(2))
            assert [contents(t) for t in store.read(step)] == [contents(chat(sample)) for sample in range(3)]


def test_verdicts_of_an_earlier_version_are_read_and_continued(recorded):
    log = VerdictLog(recorded / "verdicts")
    log.append(EpisodeKey("train", 1, 0, 1), LoggedVerdict("f", None, "late"))
    for each in (log, VerdictLog(recorded / "verdicts")):
        assert each.get(EpisodeKey("train", 1, 0, 0)) == LoggedVerdict("d", Reward(0.5, {"a": 0.1}, {"text": "ü\n"}))
        assert each.get(EpisodeKey("train", 1, 0, 0), 2, 3) == LoggedVerdict("e", None, "why")
        assert each.get(EpisodeKey("train", 1, 0, 1)) == LoggedVerdict("f", None, "late")


def test_metrics_of_an_earlier_version_are_read_and_continued(recorded):
    with MetricsLog(recorded, resume_step=2, tensorboard=False) as log:
        log.write(3, {"loss": 1.0})
    first, second, third = read_metrics(recorded)
    assert (first, third) == ({"step": 1, "loss": 2.5}, {"step": 3, "loss": 1.0})
    assert second == {"step": 2, "loss": None, "heads": [[0.25]], "non_finite": {"loss": "nan"}}


def test_verdicts_that_an_earlier_version_wrote_behind_half_a_line_are_refused_in_one_line(recorded):
    [path] = (recorded / "verdicts").iterdir()
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1][:9] + whole[1])
    with pytest.raises(UserError, match="line 2 does not have its checksum; delete the file to judge again"):
        VerdictLog(recorded / "verdicts").get(EpisodeKey("train", 1, 0, 0))
