"""Which prompts are under way, complete, and handed to the trainer: a state machine without clocks and files.

Prompts are drawn by number, from 0. A prompt is open from its draw until it is handed on. These hold after every call,
and tests/rl/workers/test_window.py checks them:

- a number is drawn once and handed on at most once, and only when it is complete;
- a batch is the oldest of the complete ones, in the order of the draw;
- a complete one that is too stale to be trained on is under way again, and open all the time;
- no number is drawn that is ``look_ahead`` or more above the oldest one that is not complete, nor while as many are
  open: groups that end first are short ones, and a prompt whose episodes are long cannot be overtaken for ever;
- where all open numbers are complete and are no batch yet, the next one can be drawn;
- a caller that knows how old samples will be may draw less: nothing that would come too late (``draw``'s ``batches``).
"""

from __future__ import annotations

from collections.abc import Iterable


class DrawWindow:
    """The numbers of a run's prompts; see the module's text.

    Args:
        batch: prompts of an iteration.
        look_ahead: bound of what is drawn ahead [prompts], at least ``batch``.
        total: prompts of the whole run.

    Attributes:
        drawn: how many were drawn.
        open: numbers that were drawn and not handed on.
        complete: of these, the ones whose groups are complete.
    """

    def __init__(self, batch: int, look_ahead: int, total: int):
        if not 1 <= batch <= look_ahead:
            raise ValueError("a window looks ahead by at least one batch")
        self._batch, self._look_ahead, self._total = batch, look_ahead, total
        self.drawn = 0
        self.open: set[int] = set()
        self.complete: set[int] = set()

    @property
    def oldest(self) -> int:
        """The oldest open number; the next one to be drawn where none is open."""
        return min(self.open, default=self.drawn)

    def draw(self, batches: int | None = None) -> int | None:
        """Draws the next number; None where it would be too far ahead, or the run needs no more.

        Args:
            batches: of the open prompts the drawn one has to be in one of the next so many; None is any.
        """
        most = self._look_ahead if batches is None else min(self._look_ahead, batches * self._batch)
        slowest = min(self.open - self.complete, default=self.drawn)
        if self.drawn >= min(slowest + self._look_ahead, self._total) or len(self.open) >= most:
            return None
        number, self.drawn = self.drawn, self.drawn + 1
        self.open.add(number)
        return number

    def finish(self, number: int) -> None:
        """An open number's group is complete.

        Raises:
            ValueError: it is not open, or was complete already.
        """
        if number not in self.open or number in self.complete:
            raise ValueError(f"the prompt {number} is not under way")
        self.complete.add(number)

    def again(self, number: int) -> None:
        """A complete number's group is sampled once more.

        Raises:
            KeyError: it is not complete.
        """
        self.complete.remove(number)

    def take(self) -> tuple[list[int], list[int]] | None:
        """Hands a batch on, once there are enough complete ones.

        Returns:
            The batch, and the open numbers that it has overtaken; None where it is not there yet.
        """
        if len(self.complete) < self._batch:
            return None
        batch = sorted(self.complete)[: self._batch]
        self.complete.difference_update(batch)
        self.open.difference_update(batch)
        return batch, sorted(number for number in self.open - self.complete if number < batch[-1])

    def restore(self, drawn: int, open_numbers: Iterable[int]) -> None:
        """Continues from ``drawn`` and ``open`` of a checkpoint; what was complete then has to be finished again."""
        self.drawn, self.open, self.complete = drawn, set(open_numbers), set()
