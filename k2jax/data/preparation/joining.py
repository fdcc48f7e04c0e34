"""The parts of a source in order, read as if one process had read the source from its beginning."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import contextlib
from pathlib import Path
from typing import Any

from k2jax.data.preparation.cutting import ReadTask
from k2jax.data.preparation.part_files import PartBlock, read_part, remove_parts
from k2jax.data.preparation.pools import TaskPool
from k2jax.data.preparation.progress_lines import shown_progress
from k2jax.data.preparation.tokenising import Tokenising
from k2jax.data.sources import CorruptRecords
from k2jax.data.tokenised import Tokenised
from k2jax.files.readers import with_lines_before


class JoinedParts:
    """Reads a source, part by part; parts that are missing are made first, and kept until ``remove``.

    Args:
        tasks: of the source.
        make: makes the part of a task.
        pool: who does it.
        log: receives lines of progress.
    """

    def __init__(self, tasks: Sequence[ReadTask], make: Tokenising, pool: TaskPool, log: Callable[[str], None] | None):
        self._tasks, self._make, self._pool, self._log = tasks, make, pool, log
        self._paths = [make.path(task) for task in tasks]

    def read(self, report: CorruptRecords) -> Iterator[Tokenised]:
        """The documents in order; ``report`` learns of records where a single reader would have reported them."""
        are_kept, lines = [path.exists() for path in self._paths], 0
        missing = [task for task, is_kept in zip(self._tasks, are_kept, strict=True) if not is_kept]
        progress = shown_progress(f"tokenising {self._make.name}", self._tasks, self._log if missing else None)
        with contextlib.closing(self._made(missing)) as made, progress as advance:
            for task, path, is_kept in zip(self._tasks, self._paths, are_kept, strict=True):
                if not is_kept:
                    next(made)
                lines = yield from self._of_part(task, path, lines, report)
                advance(task, is_kept)

    def remove(self) -> None:
        """Removes the parts, and what processes that were killed have left of them."""
        remove_parts(self._paths)

    def _made(self, missing: Sequence[ReadTask]) -> Iterator[None]:
        """Makes parts; of a source of which little is wanted, the first one before any process starts."""
        here = 1 if self._make.source.max_documents else 0
        yield from map(self._make, missing[:here])
        yield from self._pool.run(self._make, missing[here:])

    def _of_part(self, task: ReadTask, path: Path, lines: int, report: CorruptRecords) -> Iterator[Tokenised]:
        """The documents of a part; returns the lines of its last file up to the end of the part.

        ``lines`` are those of its first file before the part.
        """
        before, events, count, facts = lines if task.parts[0].begin else 0, deque(), 0, {}
        for block in self._blocks(task, path):
            events.extend(block.events)
            for document in block.documents:
                while events and events[0][0] <= count:
                    _tell(events.popleft(), before, report)
                yield document
                count += 1
            facts = block.facts
        for event in events:
            _tell(event, before, report)
        return facts["lines"][-1] + (before if len(task.parts) == 1 else 0)

    def _blocks(self, task: ReadTask, path: Path) -> Iterator[PartBlock]:
        try:
            return read_part(path)
        except FileNotFoundError:  # another build of this source was faster, and has removed it
            self._make(task)
            return read_part(path)


def _tell(event: list[Any], lines: int, report: CorruptRecords) -> None:
    """Reports what was recorded; ``lines`` are those of the file before the part."""
    _, kind, *values = event
    if kind == "corrupt":
        report(with_lines_before(values[0], lines), values[1])
    elif kind == "more":
        report.count_more(*values)
    else:
        report.count_unread(values)
