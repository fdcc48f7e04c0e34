"""An xprof trace of chosen steps."""

from __future__ import annotations

from pathlib import Path

import jax


class StepTrace:
    """Traces the steps ``first`` to ``last`` of ``steps = (first, last)`` into ``folder``; none when it is empty.

    A run that resumes between the two traces the remaining steps; one that ends between them writes what was traced.
    """

    def __init__(self, folder: Path, steps: tuple[int, ...]):
        self._folder, self._steps, self._running = folder, steps, False

    def __enter__(self) -> StepTrace:
        return self

    def before(self, step: int) -> None:
        """Starts the trace if it is time."""
        if self._steps and not self._running and self._steps[0] <= step <= self._steps[1]:
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def after(self, step: int) -> None:
        """Stops the trace if it is time."""
        if self._running and step >= self._steps[1]:
            self.__exit__()

    def __exit__(self, *error: object) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
