"""The last line of a run on the console: its report, its checkpoint, and what to do next."""

from __future__ import annotations

import shlex

from k2jax.checkpoint import committed_steps
from k2jax.checkpoint.folders import BEST
from k2jax.report.markdown import FILE
from k2jax.train.run import NON_FINITE, Run


def last_line(run: Run, command: str | None) -> str:
    """What a run has left, in a line.

    Args:
        run: the run, which has ended and written its report.
        command: the command line that started it; None for a run that no command of its own started.

    Returns:
        The status, the paths of report and checkpoint, the best one where the run has marked it, and the next command:
        the same again for a run that was stopped, and for one that finished the command that shows what it learned. A
        run that met a value that is not finite has said what to change, and is not told to go on unchanged.
    """
    steps = committed_steps(run.workdir)
    line = f"{run.status}: report {run.workdir / FILE}, {_checkpoint(run, steps)}"
    if run.exit_code:
        return line if run.exit_code == NON_FINITE or command is None else f"{line}; to go on: {command}"
    return f"{line}; next: {_next(run)}" if steps else line


def _checkpoint(run: Run, steps: list[int]) -> str:
    if run.best is not None:
        return f"best checkpoint {run.workdir / BEST} (step {run.best:,})"
    return f"last checkpoint {run.workdir}/checkpoints/{steps[-1]}" if steps else "no checkpoint"


def _next(run: Run) -> str:
    """Pages of what was rewarded after reinforcement learning, else an answer of the model."""
    workdir = shlex.quote(str(run.workdir))
    if run.config.stage == "rl":
        return f"python -m k2jax.trajectories {workdir}"
    checkpoint = shlex.quote(str(run.workdir if run.best is None else run.workdir / BEST))
    chat = " --chat" if run.config.stage == "sft" and run.config.data.chat_format == "auto" else ""
    return f'python -m k2jax.generate --checkpoint={checkpoint} --prompt="..."{chat}'
