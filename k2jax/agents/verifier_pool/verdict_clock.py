"""Time as the processes of a verdict had it, so that a busy machine is not taken for a slow verifier or answer.

A process that is ready to run, or waits for a disk, and gets nothing is delayed by the machine. Time in which any
process of a verdict is so counts only as far as they ran; what they sleep through counts whole. The kernel is asked ten
times a second what they do, so the shares are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
import time
from typing import NamedTuple

from k2jax.agents.verifier_pool.verifier_messages import ANSWER, BUSY, UNCLEAR
from k2jax.files.process_tree import Activity

TICK = 0.1
"""Between two looks [s]."""
PATIENCE = 6.0
"""What a verifier that judges every answer may sleep through, in units of its limit of processor time."""
LONGEST = 120.0
"""Wall time of a verdict however busy the machine is, in units of its limit."""
_DELAYED = frozenset("RD")
"""States in /proc: ready or running, and waiting for a disk."""


class Fault(NamedTuple):
    """Why a verdict is waited for no longer, and who is to blame where the verifier judges every answer."""

    reason: str
    blame: str


class VerdictClock:
    """Watches the processes of one verdict from its beginning.

    Attributes:
        processor: what they have used [s].
        slept: time in which none of them was ready to run [s].
        passed: ``slept``, and the time in which they ran [s].
    """

    def __init__(self, below: Mapping[int, Activity], limit: float, *, judges_every_answer: bool):
        """Begins.

        Args:
            below: the processes as they are; see ``process_tree.descendants``.
            limit: of ``passed``, or of ``processor`` where the verifier judges every answer [s].
            judges_every_answer: see ``k2jax.agents.verifier``.
        """
        self._limit, self._judges = limit, judges_every_answer
        self._begun = self._last = time.monotonic()
        self._first = self._used = _seconds(below)
        self.processor = self.slept = self.passed = 0.0

    def look(self, below: Mapping[int, Activity]) -> Fault | None:
        """Counts the time since the last look; says why the verdict is waited for no longer, or None."""
        now, used = time.monotonic(), _seconds(below)
        elapsed, ran = now - self._last, max(used - self._used, 0.0)
        self._last, self._used, self.processor = now, used, used - self._first
        if any(activity.state in _DELAYED for activity in below.values()):
            self.passed += min(ran, elapsed)
        else:
            slept = min(elapsed, 2 * TICK)  # a machine on which looks come late delays the others as well
            self.slept += slept
            self.passed += slept
        return self._fault(now - self._begun)

    def _fault(self, wall: float) -> Fault | None:
        limit = self._limit
        if self._judges and self.processor > limit:
            return Fault(f"the verifier gave no verdict in {limit:g} s of processor time", ANSWER)
        if self._judges and self.slept > PATIENCE * limit:
            return Fault(f"the verifier waited for {PATIENCE * limit:g} s without using the processor", UNCLEAR)
        if not self._judges and self.passed > limit:
            return Fault(f"the verifier gave no verdict in {limit:g} s", UNCLEAR)
        if wall > LONGEST * limit:
            share = f"{self.processor:.2g} s of processor time in {wall:.0f} s"
            return Fault(f"the machine gave the verifier {share}", BUSY)
        return None


def _seconds(below: Mapping[int, Activity]) -> float:
    return sum(activity.seconds for activity in below.values())
