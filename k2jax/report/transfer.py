"""Progress of a data transfer: a bar on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import time

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

INTERVAL = 10.0  # between plain lines [s]


@contextlib.contextmanager
def transfer(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes that were just transferred.

    Args:
        label: one word that names the transfer, such as "importing".
        total: number of bytes [B].
    """
    console = Console()
    if console.is_terminal and not console.is_dumb_terminal:
        columns = (TextColumn(label), BarColumn(None), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, expand=True) as progress:
            task = progress.add_task(label, total=total)
            yield lambda size: progress.advance(task, size)
        return
    done, printed = 0, time.monotonic()

    def advance(size: int) -> None:
        nonlocal done, printed
        done += size
        if time.monotonic() - printed >= INTERVAL:
            printed = time.monotonic()
            console.print(f"{label}: {done / 1e9:.2f} of {total / 1e9:.2f} GB", soft_wrap=True)

    yield advance
