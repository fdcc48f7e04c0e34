"""Time between two generations, in which the engine is held, and what agents of the run make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import time
from typing import NamedTuple

from k2jax.agents.registry import scaffolds
from k2jax.config.schema import Config


class AgentPatience(NamedTuple):
    """How long the client of an agent waits for an answer that it wants whole.

    Attributes:
        seconds: until it asks again [s].
        kind: class of tasks whose agent it is.
    """

    seconds: float
    kind: str


def least_patience(config: Config) -> AgentPatience | None:
    """That of the least patient agent of a run; None where all wait for ever, or stream, which is kept alive.

    Raises:
        UserError: a scaffold cannot be made.
    """
    made = {kind: scaffolds.make(task.scaffold) for kind, task in config.rl.tasks.items() if task.scaffold}
    known = [AgentPatience(getattr(scaffold, "patience", 0.0), kind) for kind, scaffold in made.items()]
    return min((patience for patience in known if patience.seconds), default=None)


class Pauses:
    """Measures the pauses of a run, and says once that one of them is longer than an agent waits.

    How long training takes is not known before, so that no pause can be kept shorter.

    Args:
        patience: see ``least_patience``.
        say: prints a line.
    """

    def __init__(self, patience: AgentPatience | None, say: Callable[[str], None]):
        self._patience, self._say = patience, say
        self._ended: float | None = None
        self._longest = 0.0

    @contextlib.contextmanager
    def generation(self) -> Iterator[None]:
        """A ``with`` block in which the engine generates."""
        if self._ended is not None:
            self._note(time.perf_counter() - self._ended)
        try:
            yield
        finally:
            self._ended = time.perf_counter()

    def longest(self) -> float:
        """The longest pause since this was last asked; 0 where there was none [s]."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _note(self, seconds: float) -> None:
        self._longest = max(self._longest, seconds)
        if self._patience is not None and seconds > self._patience.seconds:
            self._say(
                f"a pause of {seconds:.0f} s between two generations was longer than the {self._patience.seconds:g} s "
                f"for which the agent of config.rl.tasks.{self._patience.kind} waits for an answer: it asks again, and "
                "an answer that was under way is lost; see the metric pause_seconds"
            )
            self._patience = None
