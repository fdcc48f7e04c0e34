"""The end of a run whose held-out loss no longer falls, by ``config.train.patience``; it marks the best step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.train.run import Run, say


class Patience:
    """Compares the validations of a run, and ends it after too many without an improvement.

    What it knows is kept in the run's checkpoints, so that a resumed run ends at the same step, and one that has ended
    stays where it is until the patience is raised.

    Args:
        run: its ``config.train.patience`` is the number of validations on end without a lower loss that end it; 0
            compares nothing.
    """

    def __init__(self, run: Run):
        self._run, self._most = run, run.config.train.patience
        self._known: dict[str, Any] = (run.extra or {}).get("patience") or {"loss": None, "step": None, "waited": 0}
        if self._is_exhausted:
            self._end()
            say(f"{run.status}; raise config.train.patience to train on")

    @property
    def extra(self) -> dict[str, Any] | None:
        """What to save with a checkpoint; None where nothing is compared."""
        return {"patience": dict(self._known)} if self._most else None

    def is_best(self, step: int, record: Mapping[str, Any]) -> bool:
        """Whether a validation's loss is the lowest so far; ends the run where there were too many that are not.

        Args:
            step: the step that was validated.
            record: of the validation; empty where none was due.
        """
        if not self._most or "val_loss" not in record:
            return False
        loss, lowest = record["val_loss"], self._known["loss"]
        if lowest is None or loss < lowest:
            self._known = {"loss": loss, "step": step, "waited": 0}
            return True
        self._known = {**self._known, "waited": self._known["waited"] + 1}
        if self._is_exhausted:
            self._end()
            self._run.note(self._run.status)
        return False

    @property
    def _is_exhausted(self) -> bool:
        return bool(self._most) and self._known["waited"] >= self._most

    def _end(self) -> None:
        best, waited = self._known, self._known["waited"]
        self._run.end(
            f"stopped by patience: the held-out loss was lowest, {best['loss']:.4f}, at step {best['step']:,}, "
            f"{waited} validation{'s' * (waited > 1)} ago"
        )
