"""A long run needs no more memory than a short one: logs, plots, validation and checkpoints keep nothing of old steps.

``pytest -n0 -s -m slow tests/train/test_memory_growth.py`` prints the memory by step.
"""

import itertools
import os
from pathlib import Path
import statistics
import subprocess
import sys
import time

import pytest

from tests.train.tiny import CONFIG_FILE, write_corpus

STEPS, SETTLED, EVERY = 3000, 500, 50
"""Steps of the run; those in which compiling and caches may take memory; steps between two readings."""
MOST = 10e3
"""Bytes a step."""
OVERRIDES = {
    "train.steps": STEPS,
    "checkpoint.every": 200,
    "eval.every": 100,
    "log.plots_every": 100,
    "log.tensorboard": True,
}


def resident_bytes(process: subprocess.Popen) -> int:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(process: subprocess.Popen, metrics: Path) -> list[tuple[int, int]]:
    """(step, resident bytes) about every EVERY steps, until the process ends."""
    readings, step, due = [], 0, EVERY
    while process.poll() is None:
        time.sleep(0.1)
        if metrics.exists():
            with open(metrics, "rb") as file:
                step = sum(1 for _ in file)
        if step >= due:
            readings.append((step, resident_bytes(process)))
            due = step + EVERY
    return readings


def growth(readings: list[tuple[int, int]]) -> float:
    """The median slope between all pairs of readings, which single plots and checkpoints do not move [bytes a step]."""
    pairs = itertools.combinations(readings, 2)
    return statistics.median((later - first) / (end - start) for (start, first), (end, later) in pairs)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads a process's memory from /proc")
def test_resident_memory_is_flat_after_the_first_steps(tmp_path):
    write_corpus(tmp_path)
    config, workdir = tmp_path / "config.py", tmp_path / "run"
    config.write_text(CONFIG_FILE.format(folder=str(tmp_path)))
    command = [sys.executable, "-m", "k2jax.train", f"--config={config}", f"--workdir={workdir}"]
    command += [f"--config.{key}={str(value).lower()}" for key, value in OVERRIDES.items()]
    with open(tmp_path / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            readings = measure(process, workdir / "metrics.jsonl")
        finally:
            process.kill()
    assert process.wait() == 0, (tmp_path / "output.txt").read_text()[-2000:]
    settled = [reading for reading in readings if reading[0] > SETTLED]
    for step, size in readings[:: max(1, len(readings) // 12)]:
        print(f"step {step:,}: {size / 1e6:.0f} MB")
    print(f"{growth(settled) / 1e3:.1f} kB a step after step {SETTLED}")
    assert len(settled) > 20 and settled[-1][0] > 0.9 * STEPS
    assert growth(settled) <= MOST
