"""Tests marked ``devices`` run in a child process with that many devices, and end as they ended there."""

import subprocess
import sys

from tests.emulated import ROOT

FILE = """
import os
import pytest

@pytest.mark.devices(3)
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    import jax

    assert "device_count=3" in os.environ["XLA_FLAGS"] and jax.device_count() == 3
    assert number == 1, f"number {number} is wrong"

@pytest.mark.devices(3)
def test_skipped():
    pytest.skip("not today")

@pytest.mark.devices(2)
def test_child_that_ends():
    os._exit(1)

def test_parent():
    assert "device_count" not in os.environ["XLA_FLAGS"]
"""


def test_outcomes_and_messages_of_the_child_are_those_of_the_parent(tmp_path):
    (tmp_path / "test_file.py").write_text(FILE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems")
    options = ["-c", "pyproject.toml", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    outcomes = {line.split("::")[1].split(" - ")[0]: line.split()[0] for line in lines}
    assert outcomes["test_numbers[1]"] == outcomes["test_parent"] == "PASSED", done.stdout
    assert outcomes["test_numbers[2]"] == outcomes["test_child_that_ends"] == "FAILED", done.stdout
    assert "2 passed, 1 skipped" in done.stdout and "2 failed" in done.stdout
    assert "number 2 is wrong" in done.stdout and "assert 2 == 1" in done.stdout
    assert "not today" in done.stdout
    assert "the child process did not report this test" in done.stdout
