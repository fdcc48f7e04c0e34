"""Starts that ended before a step was done: they bind a workdir to nothing, and mislead no later start."""

from __future__ import annotations

import json
from pathlib import Path
import shutil

from k2jax.checkpoint import committed_steps, run_config
from k2jax.config.identity import fixed_keys
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.report.metrics import FILE

FOLDER = "failed_start"
"""Where in a workdir the files of the last such start are kept."""
_WRITTEN = (
    "config.json",
    FILE,
    "tensorboard",
    "wandb",
    "tokenizer",
    "trajectories",
    "verdicts",
    "groups",
    "teachers.json",
)
"""Without ``config.json`` they may be another program's, and stay."""


def is_bound(workdir: Path) -> bool:
    """Whether a workdir holds a step that was done: a checkpoint, or a line of metrics behind step 0."""
    return bool(committed_steps(workdir)) or any(_steps(workdir / FILE))


def set_aside(workdir: Path, config: Config) -> str:
    """Moves away what a start has left in a workdir that is not bound, unless it was a start of the same run.

    Returns:
        What was done, in a line; empty for nothing.
    """
    if not (workdir / "config.json").exists() or is_bound(workdir) or _is_of(workdir, config):
        return ""
    left = [workdir / name for name in _WRITTEN if (workdir / name).exists()]
    kept = workdir / FOLDER
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for path in left:
        path.rename(kept / path.name)
    return f"an earlier start in {workdir} did no step and binds nothing; what it wrote is in {kept}"


def _is_of(workdir: Path, config: Config) -> bool:
    """Whether the start was one of a run with this config."""
    try:
        return fixed_keys(run_config(workdir)) == fixed_keys(config)
    except UserError:  # it cannot be read
        return False


def _steps(path: Path) -> list[int]:
    """The steps of lines of metrics; those that cannot be read count as a step."""
    if not path.exists():
        return []
    steps = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            steps.append(int(json.loads(line)["step"]))
        except (ValueError, TypeError, KeyError):
            steps.append(1)
    return steps
