"""Tests marked ``devices`` end as they do in a child process with that many devices; each report has its seconds."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from tests.budget import PROPERTY, by_folder
from tests.emulated import ROOT

FILE = """
import os, subprocess, sys
import pytest

@pytest.mark.devices(3)
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    assert "device_count=3" in os.environ["XLA_FLAGS"]
    assert number == 1, f"number {number} is wrong"

@pytest.mark.devices(3)
def test_skipped():
    pytest.skip("not today")

@pytest.mark.devices(2)
def test_child_that_ends():
    os._exit(1)

BURN = "import time; end = time.process_time() + 0.15\\nwhile time.process_time() < end: pass"

def test_parent():
    assert "device_count" not in os.environ["XLA_FLAGS"]
    exec(BURN)

def test_process():
    subprocess.run([sys.executable, "-c", BURN], check=True)
"""


@pytest.mark.slow
def test_outcomes_and_messages_of_the_child_are_those_of_the_parent(tmp_path):
    (tmp_path / "tests" / "folder").mkdir(parents=True)
    (tmp_path / "tests" / "folder" / "test_file.py").write_text(FILE)
    options = ["-c", "pyproject.toml", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA"]
    options += ["-p", "tests.conftest", f"--junitxml={tmp_path}/junit.xml"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    outcomes = {line.split("::")[1].split(" - ")[0]: line.split()[0] for line in lines}
    assert outcomes["test_numbers[1]"] == outcomes["test_parent"] == "PASSED", done.stdout
    assert outcomes["test_numbers[2]"] == outcomes["test_child_that_ends"] == "FAILED", done.stdout
    assert "3 passed, 1 skipped" in done.stdout and "2 failed" in done.stdout
    assert "number 2 is wrong" in done.stdout and "assert 2 == 1" in done.stdout
    assert "not today" in done.stdout
    assert "the child process did not report this test" in done.stdout
    seconds = seconds_of(tmp_path / "junit.xml")
    [whole] = by_folder(tmp_path / "junit.xml").values()
    assert abs(whole - sum(seconds.values())) < 1e-6
    assert seconds["test_parent"] >= 0.15 and seconds["test_process"] >= 0.15


def seconds_of(report):
    """Processor seconds of each test of a report."""
    cases = ElementTree.parse(report).iter("testcase")
    entries = ((case.get("name"), entry) for case in cases for entry in case.iter("property"))
    return {name: float(entry.get("value")) for name, entry in entries if entry.get("name") == PROPERTY}
