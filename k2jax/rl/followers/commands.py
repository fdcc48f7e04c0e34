"""What a run asks of its log of commands, and the run of one process, which needs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from k2jax.batch import PackedBatch
from k2jax.inference.engine import Engine
from k2jax.rl.followers.digests import digest_of_rows

Result = TypeVar("Result")


class Commands:
    """The log of a run of one process: what it is asked is done at once, and nothing is sent.

    With several processes process 0 has a ``Controller`` and each other one a ``Follower``. All of them make the same
    calls in the same order; those of ``Follower`` take from the log what those of ``Controller`` have put into it.

    Attributes:
        follows: whether another process runs the episodes.
    """

    follows: ClassVar[bool] = False

    def engine(self, engine: Engine) -> Engine:
        """The engine as clients of this process use it; engines count from 0 in the order of these calls."""
        return engine

    def issue_while(self, function: Callable[[], Result]) -> Result | None:
        """Runs ``function``, which may step the engines; its result, or None where another process runs it."""
        return function()

    def joint(self, name: str, function: Callable[[Any], Result]) -> Callable[[Any], Result]:
        """Makes ``function`` one command of all processes, which each of them names at its start.

        Where the episodes run, any thread calls what is returned, with a value as of ``share``; every process then runs
        its own function with this value, on the thread that issues programs. Processes go on where each of them raises
        UserError; any other exception ends them.

        Args:
            name: of the command.
            function: what this process does.
        """
        return function

    def share(self, value: Any) -> Any:
        """The controller's value, in every process; see ``k2jax.processes.values`` for what may be shared."""
        return value

    def check(self, name: str, digest: Callable[[], bytes] = bytes) -> None:
        """Compares what this process is about to do with what the controller does, before either begins.

        Args:
            name: what is done.
            digest: returns a hash of what it is done with.
        """

    def check_rows(self, rows: Sequence[PackedBatch]) -> None:
        """``check`` of the rows ``[S]`` of an update, all of which every process has packed."""
        self.check("an update", lambda: digest_of_rows(rows))


ALONE = Commands()
"""That of a run of one process."""
