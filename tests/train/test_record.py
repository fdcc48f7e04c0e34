"""Values of one line of ``metrics.jsonl``."""

import subprocess
import sys

import pytest

from tests.emulated import ROOT

LARGE = """
import subprocess, sys

held = b"x" * 600_000_000
sys.exit(subprocess.call([sys.executable, "-c", "from k2jax.train.record import memory_gb; print(memory_gb())"]))
"""


@pytest.mark.slow
def test_peak_memory_of_a_process_is_not_that_of_the_process_that_started_it():
    done = subprocess.run([sys.executable, "-c", LARGE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.05 < float(done.stdout) < 0.55
