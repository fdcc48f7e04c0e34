"""The disk tier is filled ahead of a run: what its next rows need is fetched in the order in which they are read.

Rows lie at random places of a corpus, so that a reader of a cold tier would wait for a request with almost every row.
Here the requests of many rows are under way at a time. Who needs a chunk that is on its way waits for it, and asks for
nothing. What is left to wait for is the first batch, and a store that is slower than the run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
import threading
from typing import TYPE_CHECKING, Any
import weakref

from k2jax.errors import UserError
from k2jax.files.objects import cached_reads
from k2jax.files.objects.host_settings import host_settings

if TYPE_CHECKING:
    from k2jax.data.shards import TokenStream

    Stretch = tuple[TokenStream, int, int]  # its first token, and its end

STEPS_AHEAD = 64
"""Steps ahead of the run whose rows are looked up; where the tier has them, nothing else is done."""
PART_AHEAD = 4
"""What is fetched ahead takes at most one of so many parts of the tier: it must not drive out what it has fetched."""


class TierFiller:
    """Threads that fetch what the next steps of a run read.

    They repeat no request. Where one fails, or the disk is full, they wait until the run has come a step further: its
    reader repeats requests, and says what is wrong.
    """

    def __init__(self, stretches: Callable[[int], Iterable[Stretch]], steps: range):
        """Begins to fetch.

        Args:
            stretches: what a step reads, in order.
            steps: that are left of the run.
        """
        settings = host_settings()
        self._most = settings.limit // cached_reads.CHUNK // PART_AHEAD  # chunks
        self._stretches, self._step, self._stop = stretches, steps.start, steps.stop
        self._left: deque[Stretch] = deque()  # of the step before ``_step``
        self._taken, self._failed, self._closed = steps.start, -1, False
        self._fetched: Counter[int] = Counter()  # chunks, by steps that the run has not taken
        self._changed = threading.Condition()
        count = max(1, settings.requests - 1)  # one is left to other readers
        self._threads = [threading.Thread(target=self._work, name="fill-tier", daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def advance(self) -> None:
        """Is told that the run has taken the batch of its next step."""
        with self._changed:
            self._fetched.pop(self._taken, None)
            self._taken += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Has the threads end, each behind the request that it has under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits until the threads have ended."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            step, (stream, start, end) = taken
            failed, fetched = -1, 0
            try:
                fetched = stream.fill(start, end)
            except (UserError, FileNotFoundError):
                failed = self._taken
            with self._changed:
                self._failed = max(failed, self._failed)
                if step >= self._taken:
                    self._fetched[step] += fetched

    def _take(self) -> tuple[int, Stretch] | None:
        """The next stretch and its step, once it is time for it; None at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(self._may_go_on)
                if self._step <= self._taken:
                    self._left.clear()  # the run was faster
                if self._left and not self._closed:
                    return self._step - 1, self._left.popleft()
                self._step = max(self._step, self._taken)
                if self._closed or self._step >= self._stop:
                    return None
                self._left.extend(self._looked_up())
                self._step += 1

    def _may_go_on(self) -> bool:
        near = self._left or self._step >= self._stop or self._step < self._taken + STEPS_AHEAD
        return self._closed or bool(near and self._failed < self._taken and self._fetched.total() < self._most)

    def _looked_up(self) -> Iterable[Stretch]:
        try:
            return self._stretches(self._step)
        except UserError:  # an index is damaged, as the reader will say
            self._closed = True
            return ()


class FilledBatches:
    """An iterator over batches that a filler goes ahead of; deleting it ends the filler, as the end of the run does."""

    def __init__(self, batches: Any, filler: TierFiller):
        self._batches, self._filler = batches, filler
        weakref.finalize(self, filler.stop).atexit = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._filler.advance()
        return batch

    def close(self) -> None:
        """Ends the threads of both, and what makes the batches."""
        self._filler.stop()
        self._batches.close()
        self._filler.join()


class RowStretches:
    """The stretches of rows, in the place of the rows: what is shuffled like them has their order.

    Attributes:
        windows: of the rows, where they are read one window after the other.
    """

    def __init__(self, rows: Any):
        self._rows = rows
        self.windows = [RowStretches(each) for each in rows.windows] if hasattr(rows, "windows") else [self]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> list[Stretch]:
        return [(self._rows.stream, *stretch) for stretch in self._rows.stretches(index)]
