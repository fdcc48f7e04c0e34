"""Runs as programs, and what two runs that should be equal have to have in common."""

import os
from pathlib import Path
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp

from k2jax.checkpoint import committed_steps
from k2jax.report.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SECONDS = 300  # that a process may take to come to what is waited for
MEASURED = ("seconds", "tokens_per_second", "gb", "mfu", "engine_busy")  # what differs between equal runs


def start(config_file, workdir, *more):
    """The command ``k2jax.rl``; what it prints is read through pipes."""
    command = [sys.executable, "-m", "k2jax.rl", f"--config={config_file}", f"--workdir={workdir}", *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, **pipes)


def run_to_the_end(config_file, workdir, *more):
    """The command in a new process, which has to succeed."""
    process = start(config_file, workdir, *more)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr


def results(workdir):
    """The records of a run without what a clock or the machine decides."""
    return [
        {key: value for key, value in record.items() if not any(word in key for word in MEASURED)}
        for record in read_metrics(workdir)
    ]


def final_state(workdir):
    """Every array of the newest checkpoint, the optimizer's among them, by its path."""
    folder = Path(workdir) / "checkpoints" / str(committed_steps(workdir)[-1])
    items = {item: ocp.PyTreeCheckpointer().restore(folder / item) for item in ("params", "optimizer")}
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(items)}


def assert_equal_runs(workdir, expected):
    """The same metrics, the same bits in the last checkpoint, and the same bytes of trajectories."""
    assert results(workdir) == results(expected)
    state, other = final_state(workdir), final_state(expected)
    assert state.keys() == other.keys() and len(state) > 10
    assert all(state[name].tobytes() == other[name].tobytes() for name in state)
    stored = sorted((expected / "trajectories").iterdir())
    assert [file.name for file in stored] == sorted(file.name for file in (workdir / "trajectories").iterdir())
    assert all(file.read_bytes() == (workdir / "trajectories" / file.name).read_bytes() for file in stored)
