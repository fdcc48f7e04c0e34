"""Progress of a run: a bar on a terminal, otherwise (log file, notebook, pipe) a plain line every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from k2jax.report.table import duration, significant

INTERVAL = 10.0  # between plain lines [s]
SHOWN = (
    ("loss", "loss {}"),
    ("reward", "reward {}"),
    ("tokens_per_second", "{} tokens/s"),
    ("dropped_rows", "{} rows dropped"),
)


class Progress:
    """A context manager that shows the progress of a run, and restores the terminal at its end.

    Args:
        total: last step of the run.
        start: step from which the run starts; 0, or the restored step.
        log: console to write to, standard output by default; ``Console(quiet=True)`` prints nothing.
        work: of the first steps, by their number, in any unit: what a step costs beside the others. None is the same
            for all.
        clock: returns seconds since any origin; for tests.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        log: Console | None = None,
        *,
        work: Callable[[int], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._step, self._clock, self._work = total, start, clock, work or float
        self._start = start
        self._console = log if log is not None else Console()
        self._begin = self._printed_at = clock()
        self._printed_step = start
        self._first: tuple[int, float] | None = None  # step and time of the first update
        self._values: dict[str, float] = {}
        self._bar: RichProgress | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # On a narrow terminal everything except the step may be truncated.
            step_column = Column(no_wrap=True, min_width=len(f"step {total:,}/{total:,}"))
            self._bar = RichProgress(
                TextColumn("step {task.completed:,.0f}/{task.total:,.0f}", table_column=step_column),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TextColumn("{task.fields[shown]}"),
                TextColumn("[dim]{task.fields[left]}"),
                console=self._console,
                expand=True,
            )
            self._task = self._bar.add_task("", total=total, completed=start, shown="compiling", left="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._step != self._printed_step:
            self._print_line()

    def update(self, step: int, values: Mapping[str, Any]) -> None:
        """Shows that ``step`` is done, with some of its metrics (see SHOWN), unless it is where the run starts."""
        if step == self._start:
            return
        is_first = self._first is None
        if is_first:
            self._first = (step, self._clock())
        self._step = step
        self._values |= {key: values[key] for key, _ in SHOWN if values.get(key) is not None}
        if self._bar is not None:
            left = self.seconds_left()
            text = "" if left is None else f"{duration(left)} left"
            self._bar.update(self._task, completed=step, shown=self._shown(), left=text)
        elif is_first or step >= self._total or self._clock() - self._printed_at >= INTERVAL:
            self._print_line(
                f"first step {duration(self._clock() - self._begin)}, compilation included" if is_first else ""
            )

    def note(self, text: str) -> None:
        """Prints a separate line, above the bar if there is one."""
        # Without soft_wrap rich would wrap lines at 80 columns if the output is a file.
        self._console.print(Text(text), soft_wrap=True)

    def seconds_left(self) -> float | None:
        """Returns the estimated time to the last step [s]; None before the second update.

        The rate is measured from the end of the first step, because that step includes the compilation.
        """
        if self._first is None or self._step <= self._first[0]:
            return None
        first, done = self._work(self._first[0]), self._work(self._step)
        return (self._clock() - self._first[1]) / (done - first) * max(0, self._work(self._total) - done)

    def _shown(self) -> str:
        return " · ".join(form.format(significant(self._values[key])) for key, form in SHOWN if key in self._values)

    def _print_line(self, remark: str = "") -> None:
        left = self.seconds_left()
        time_left = f"{duration(left)} left" if left else ""
        parts = [f"step {self._step:,}/{self._total:,}", self._shown(), remark, time_left]
        self.note(" · ".join(part for part in parts if part))
        self._printed_at, self._printed_step = self._clock(), self._step
