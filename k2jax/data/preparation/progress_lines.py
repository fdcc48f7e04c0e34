"""How far a source is: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from k2jax.data.preparation.cutting import ReadTask
from k2jax.report.table import duration

LOG_SECONDS = 5.0
"""Between lines [s]."""


class ReadingProgress:
    """What of a source has been read.

    Args:
        label: names the work.
        tasks: all of them, in the order in which they are done.
        clock: returns seconds since any origin.
    """

    def __init__(self, label: str, tasks: Sequence[ReadTask], clock: Callable[[], float] = time.monotonic):
        self._label, self._clock, self._begin = label, clock, clock()
        self._files = len({part.path for task in tasks for part in task.parts})
        self._last = None
        self.total = sum(task.bytes for task in tasks)
        self.bytes = self._kept = self._begun = 0

    def add(self, task: ReadTask, kept: bool) -> None:
        """Counts a task, which may be kept of an earlier build that was killed."""
        self.bytes += task.bytes
        self._kept += task.bytes * kept
        for part in task.parts:
            self._begun += part.path != self._last
            self._last = part.path

    @property
    def line(self) -> str:
        """Files, bytes, rate of what was not kept, and the time that is left."""
        seconds = max(self._clock() - self._begin, 1e-9)
        rate = (self.bytes - self._kept) / seconds
        read = f"{self._begun:,} of {self._files:,} files, {self.bytes / 1e6:,.0f} of {self.total / 1e6:,.0f} MB"
        left = f", {duration((self.total - self.bytes) / rate)} left" if rate else ""
        return f"{self._label}: {read}, {rate / 1e6:.1f} MB/s{left}"


@contextlib.contextmanager
def shown_progress(
    label: str, tasks: Sequence[ReadTask], log: Callable[[str], None] | None
) -> Iterator[Callable[[ReadTask, bool], None]]:
    """Shows progress for the block, which calls the function that it receives after each task.

    Args:
        label: names the work.
        tasks: see ``ReadingProgress``.
        log: receives lines where there is no terminal; None shows nothing.
    """
    progress, console = ReadingProgress(label, tasks), Console(stderr=True)
    if log is None:
        yield progress.add
    elif console.is_terminal and not console.is_dumb_terminal:
        with Progress(TextColumn("{task.description}"), BarColumn(None), console=console, transient=True) as bar:
            number = bar.add_task(progress.line, total=progress.total)

            def advance(task: ReadTask, kept: bool) -> None:
                progress.add(task, kept)
                bar.update(number, completed=progress.bytes, description=progress.line)

            yield advance
    else:
        printed = time.monotonic()

        def advance(task: ReadTask, kept: bool) -> None:
            nonlocal printed
            progress.add(task, kept)
            if time.monotonic() > printed + LOG_SECONDS:
                printed = time.monotonic()
                log(progress.line)

        yield advance
