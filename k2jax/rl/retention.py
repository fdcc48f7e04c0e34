"""How long verdicts stay: a run that goes on from any of its checkpoints finds all that it asks for, and no older ones.

From the checkpoint of step C a run asks for verdicts on iterations and evaluations after C, and on groups that wait in
the checkpoint, which began before it. A group leaves and never comes back: the later a checkpoint, the later its oldest
group began.
"""

from __future__ import annotations

from pathlib import Path

from k2jax.agents.verdicts import VerdictLog
from k2jax.checkpoint import committed_steps
from k2jax.trajectory.types import Purpose


class VerdictRetention:
    """Deletes the verdicts that no checkpoint of a run leads to.

    Args:
        log: of verdicts. Those for the table of budgets, which lies in every checkpoint, are needed until there is one.
        workdir: of the run.
    """

    def __init__(self, log: VerdictLog, workdir: Path):
        self._log, self._workdir = log, workdir
        self._began: dict[int, int] = {}

    def note(self, step: int, began: int) -> None:
        """Notes, for a step whose checkpoint may be saved or was restored, when its oldest waiting group began.

        Args:
            step: that was done.
            began: step in which the oldest group that waits began; ``step + 1`` where none waits.
        """
        self._began[step] = began

    def tidy(self) -> None:
        """Deletes what even the oldest checkpoint on disk leads to no more; call it where a checkpoint was begun.

        Of a checkpoint that an earlier process has saved it is not known what waits in it; while it is the oldest,
        everything stays.
        """
        oldest = min(committed_steps(self._workdir), default=None)
        if oldest not in self._began:
            return
        began = self._began[oldest]

        def unneeded(purpose: Purpose, step: int) -> bool:
            return purpose == "budget" or step < (began if purpose == "train" else oldest + 1)

        self._log.forget(unneeded)
        self._began = {step: first for step, first in self._began.items() if step >= oldest}
