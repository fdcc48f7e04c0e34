"""metrics.jsonl: unique ascending steps and valid JSON, whatever the moment of a kill."""

import json
import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.errors import UserError
from k2jax.report.metrics import MetricsLog, read_metrics

numbers = st.one_of(st.floats(width=64), st.integers(-(2**40), 2**40))
values = st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
quick = settings(max_examples=60, deadline=None)


def write_steps(workdir: Path, steps, resume_step: int = 0, **value) -> None:
    with MetricsLog(workdir, resume_step=resume_step, tensorboard=False) as log:
        for step in steps:
            log.write(step, {"loss": step / 2} | value)


def steps_of(workdir: Path) -> list[int]:
    return [record["step"] for record in read_metrics(workdir)]


def strict(line: str):
    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def look_up(values, place: str):
    key, *indices = place.replace("]", "").split("[")
    value = values[key]
    for index in indices:
        value = value[int(index)]
    return value


@quick
@given(st.lists(st.dictionaries(st.sampled_from(["loss", "max_logit_heads", "x"]), values), min_size=1, max_size=4))
def test_every_line_is_strict_json_and_says_what_was_not_finite(lines):
    with tempfile.TemporaryDirectory() as workdir:
        with MetricsLog(workdir, resume_step=0, tensorboard=False) as log:
            for step, line in enumerate(lines, 1):
                log.write(step, line)
        written = [strict(text) for text in (Path(workdir) / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in written] == list(range(1, len(lines) + 1))
    for line, record in zip(lines, written, strict=True):
        for place, reason in record.pop("non_finite", {}).items():
            assert look_up(record, place) is None
            assert str(float(look_up(line, place))) == reason
        del record["step"], record["crc32"]
        expected = json.loads(json.dumps(line), parse_constant=lambda _: None)  # the same with null for NaN
        assert record == expected


@quick
@given(st.integers(0, 12), st.integers(0, 14), st.integers(0, 400), st.integers(0, 5))
def test_a_run_cut_anywhere_and_resumed_holds_each_step_once(last, resume, cut, more):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        write_steps(folder, range(1, last + 1))
        content = path.read_bytes()
        cut = max(0, len(content) - cut)
        path.write_bytes(content[:cut])
        # The newline is not part of the object: a line that lacks only that is complete.
        complete = [s for s, end in enumerate(line_ends(content), 1) if cut >= end]
        assert steps_of(folder) == complete
        first = max(resume, last) + 1
        write_steps(folder, range(first, first + more), resume_step=resume)
        assert steps_of(folder) == [s for s in complete if s <= resume] + list(range(first, first + more))
        assert all(strict(line) for line in path.read_text().splitlines())
        assert [p.name for p in Path(folder).iterdir()] == ["metrics.jsonl"]


def line_ends(content: bytes) -> list[int]:
    return [index for index, byte in enumerate(content) if byte == ord("\n")]


def test_steps_must_increase(tmp_path):
    with MetricsLog(tmp_path, resume_step=0, tensorboard=False) as log:
        log.write(3, {})
        for step in (3, 2):
            with pytest.raises(ValueError, match="must increase"):
                log.write(step, {})
        with pytest.raises(ValueError, match="reserved"):
            log.write(4, {"step": 4})
    assert steps_of(tmp_path) == [3]


def test_the_restored_step_may_be_written_again_once(tmp_path):
    write_steps(tmp_path, [0, 1], old=True)
    with MetricsLog(tmp_path, resume_step=1, tensorboard=False) as log:
        log.write(1, {"new": True})
        with pytest.raises(ValueError, match="must increase"):
            log.write(1, {})
        log.write(2, {"new": True})
    assert [("old" in record, "new" in record) for record in read_metrics(tmp_path)] == [
        (True, False),
        (False, True),
        (False, True),
    ]


def test_a_kill_loses_no_line_that_was_reported(tmp_path):
    code = (
        "from k2jax.report.metrics import MetricsLog\n"
        f"log = MetricsLog({str(tmp_path)!r}, resume_step=0, tensorboard=False)\n"
        "for step in range(1, 10**9):\n"
        "    log.write(step, {'loss': 1.0})\n"
        "    print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) == 200:
            os.kill(process.pid, signal.SIGKILL)
            break
    reported = max([200, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    process.wait()
    steps = steps_of(tmp_path)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= reported


def test_events_of_tensorboard_are_written_without_torch_which_stays_importable(tmp_path):
    code = (
        "import sys\n"
        "from k2jax.report.metrics import MetricsLog\n"
        f"with MetricsLog({str(tmp_path)!r}, resume_step=0, tensorboard=True) as log:\n"
        "    log.write(1, {'loss': 0.625})\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "import torch\n"
        "torch.zeros(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    [events] = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes()


@quick
@given(st.data())
def test_one_flipped_bit_is_noticed_and_costs_one_line(data):
    with tempfile.TemporaryDirectory() as folder:
        write_steps(folder, range(1, 5), heads=[[0.25, -3.5e-7]])
        path = Path(folder) / "metrics.jsonl"
        content, whole = bytearray(path.read_bytes()), read_metrics(folder)
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with MetricsLog(folder, resume_step=4, tensorboard=False) as log:
            damaged = log.damaged
        left = read_metrics(folder)
        if damaged:
            assert [record for record in whole if record in left] == left and len(left) >= 2  # a newline joins two
            assert (Path(folder) / "metrics.damaged.jsonl").exists()
        else:  # the end of the last line, or the name of the checksum's key
            kept = [{key: record[key] for key in old} for old, record in zip(whole, left, strict=False)]
            assert kept == whole[: len(kept)] and len(kept) >= 3


def test_a_damaged_line_is_named_to_readers_and_set_aside_by_a_run(tmp_path):
    write_steps(tmp_path, [1, 2, 3])
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": 1.0', '"loss": 1.5'))
    with pytest.raises(UserError, match="line 2 is damaged"):
        read_metrics(tmp_path)
    with MetricsLog(tmp_path, resume_step=3, tensorboard=False) as log:
        assert (log.damaged, log.last_step) == (1, 3)
    assert steps_of(tmp_path) == [1, 3]
    assert '"loss": 1.5' in (tmp_path / "metrics.damaged.jsonl").read_text()


def test_lines_without_a_checksum_are_read(tmp_path):
    """Versions before checksums wrote them."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    write_steps(tmp_path, [2], resume_step=1)
    assert steps_of(tmp_path) == [1, 2]


def test_an_untouched_file_is_not_rewritten(tmp_path):
    write_steps(tmp_path, [1, 2])
    before = (tmp_path / "metrics.jsonl").stat().st_ino
    MetricsLog(tmp_path, resume_step=2, tensorboard=False).close()
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before
    MetricsLog(tmp_path, resume_step=1, tensorboard=False).close()
    assert steps_of(tmp_path) == [1]


def test_arrays_and_scalars_of_numpy_are_plain_numbers_and_none_is_left_out(tmp_path):
    with MetricsLog(tmp_path, resume_step=0, tensorboard=False) as log:
        heads = np.array([[1.5, -np.inf], [0.0, np.nan]], np.float32)
        log.write(1, {"a": np.float32(0.5), "b": np.int32(3), "heads": heads, "unknown": None})
        with pytest.raises(TypeError):
            log.write(2, {"bad": object()})
    assert read_metrics(tmp_path) == [
        {
            "step": 1,
            "a": 0.5,
            "b": 3,
            "heads": [[1.5, None], [0.0, None]],
            "non_finite": {"heads[0][1]": "-inf", "heads[1][1]": "nan"},
        }
    ]


@pytest.mark.parametrize(("lines", "most", "kept"), [(5, 5, [1, 2, 3, 4, 5]), (7, 3, [1, 4, 7]), (8, 3, [2, 5, 8])])
def test_lists_are_kept_in_evenly_spaced_records_and_the_last(lines, most, kept, tmp_path):
    write_steps(tmp_path, range(1, lines + 1), expert_tokens=[[1, 2]])
    records = read_metrics(tmp_path, most_lists=most)
    assert [record["step"] for record in records if "expert_tokens" in record] == kept
    assert [record["loss"] for record in records] == [step / 2 for step in range(1, lines + 1)]
    assert read_metrics(tmp_path, most_lists=lines) == read_metrics(tmp_path)


def test_memory_to_read_a_long_run_does_not_grow_with_its_lists(tmp_path):
    """At most 3 kB a record, of which the lists alone would take 16."""

    def peak():
        tracemalloc.start()
        read_metrics(tmp_path, most_lists=20)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    scalars = {name: 0.1 for name in "abcdefghijklmnop"}
    loads = np.random.default_rng(0).integers(300, 2000, (8, 48))
    write_steps(tmp_path, range(1, 101), expert_tokens=loads, **scalars)
    short = peak()
    write_steps(tmp_path, range(101, 1001), resume_step=100, expert_tokens=loads, **scalars)
    assert peak() - short <= 900 * 3000


def test_no_file_is_no_records(tmp_path):
    assert read_metrics(tmp_path / "nowhere") == []


def test_tensorboard_holds_scalars_and_a_resumed_run_purges_later_events(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    def events() -> list:
        found = []
        for path in sorted((tmp_path / "tensorboard").iterdir()):
            data = path.read_bytes()
            while data:  # length (8), checksum (4), event, checksum (4)
                size = int.from_bytes(data[:8], "little")
                found.append(Event.FromString(data[12 : 12 + size]))
                data = data[16 + size :]
        return found

    for resume, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        with MetricsLog(tmp_path, resume_step=resume, tensorboard=True) as log:
            for step in steps:
                log.write(step, {"loss": step * 1.0, "heads": [[1.0]], "bad": math.nan})
    scalars = [(e.step, v.tag, v.simple_value) for e in events() for v in e.summary.value]
    assert scalars == [(s, "loss", float(s)) for s in (1, 2, 3, 3, 4)]
    assert [e.step for e in events() if e.HasField("session_log")] == [3]
