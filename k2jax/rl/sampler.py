"""What the loop asks of a sampler: the scored groups of each iteration."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
import contextlib
from typing import Any, Protocol

from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup


class Sampler(Protocol):
    """Rolls out and scores the groups of each iteration.

    Attributes:
        episodes: runs episodes of any purpose, on the thread of ``run``.
    """

    episodes: Episodes

    def begin(self, step: int) -> None:
        """Called once with the step from which the run starts, behind ``restore``."""
        ...

    def groups(self, step: int) -> Iterator[PromptGroup]:
        """The scored groups of an iteration, in the order of training."""
        ...

    def collect(self, step: int) -> list[PromptGroup]:
        """The list of ``groups``, which is measured and stored before anything is trained on."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine that runs episodes, while the training state leaves the devices to the engine."""
        ...

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A part of an iteration behind ``collect``, for a ``with`` block: the trace of an iteration shows it."""
        ...

    def store(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Writes the trajectories of an iteration, in place of those that are stored of it."""
        ...

    def record(self) -> Mapping[str, Any]:
        """Metrics of the last ``collect``."""
        ...

    def saved(self, step: int) -> None:
        """Called when the checkpoint of a step was begun, if one was due."""
        ...

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continues from what ``extra`` returned."""
        ...
