"""The numbers of whole runs are those that were recorded, and the comparison sees what it should."""

import copy

import pytest

from tests import golden_runs
from tests.golden_runs import FOLDER, MISSING, NEW, OTHER, RUNS, differences, recorded, records_of, too_large


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("golden-cache")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_numbers_that_were_recorded(name, tmp_path, cache):
    """Bit for bit; on another machine rounding may differ, and what was recorded says nothing."""
    if differing := golden_runs.other_machine():
        pytest.skip(f"recorded on another machine or version ({', '.join(differing)})")
    assert too_large(differences(recorded(name), golden_runs.run(name, tmp_path, cache))) == []


def test_every_run_was_recorded_and_no_clock_with_it():
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == RUNS.keys()
    for name in RUNS:
        assert len(recorded(name)) > 1
        assert not {key for record in recorded(name) for key in record if "second" in key or key.endswith("_gb")}


@pytest.fixture
def changed():
    """Records of a run to change, beside those recorded."""
    return copy.deepcopy(recorded("critic"))


def test_equal_records_are_equal(changed):
    found = differences(recorded("critic"), changed)
    assert len(found) > 50 and not any(found.values()) and not too_large(found)


def test_a_changed_number_is_found_wherever_it_is(changed):
    changed[1]["loss"] *= 1 + 1e-7
    changed[2]["max_logit_heads"][1][0] *= 2
    found = differences(recorded("critic"), changed)
    assert 0 < found["loss"] < 2e-7 and found["max_logit_heads"] == pytest.approx(0.5)
    assert len(too_large(found)) == 2 and too_large(found, 1e-6) == ["max_logit_heads: 5.0e-01"]


def test_what_is_missing_new_or_no_number_is_too_large_at_any_tolerance(changed):
    del changed[1]["loss"]
    changed[2]["invented"] = 1
    changed[1]["grad_norm"] = None
    changed[2]["max_logit_heads"].pop()
    found = differences(recorded("critic"), changed)
    assert (found["loss"], found["invented"], found["grad_norm"], found["max_logit_heads"]) == (
        MISSING,
        NEW,
        OTHER,
        OTHER,
    )
    assert len(too_large(found, 1e9)) == 4


def test_a_lost_record_and_one_more_are_found(changed):
    assert differences(recorded("critic"), changed[:-1])["step"] == MISSING
    assert differences(changed[:-1], recorded("critic"))["step"] == NEW


def test_only_what_a_clock_or_the_machine_decides_is_left_out():
    [record] = records_of('{"step": 1, "loss": 0.5, "train_seconds": 3.0, "mfu": 0.1, "crc32": 7, "odd_seconds": 1}\n')
    assert record == {"step": 1, "loss": 0.5, "odd_seconds": 1}
