"""The log of commands of a run, opened."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any, NoReturn

from k2jax import processes
from k2jax.processes.command_tree import MessageTree
from k2jax.processes.membership import current_group
from k2jax.rl.followers.commands import ALONE, Commands
from k2jax.rl.followers.controller import Controller
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.follower import Follower


@contextlib.contextmanager
def open_commands(name: str, value: Any) -> Iterator[Commands]:
    """Connects the processes of a run or of an engine, which have to be started alike.

    Args:
        name: of what they are started with.
        value: this process's, a tree as of ``digest_of``.

    Raises:
        UserError: a process speaks another version.
        ProcessLostError: some do not connect.
    """
    group = current_group()
    if group is None:
        yield ALONE
        return
    with MessageTree(group, "commands") as tree:

        def fail(line: str) -> NoReturn:
            group.stop(f"{line}: {group.ending()}", 1, failed=group.index)

        commands = Controller(tree) if processes.is_first() else Follower(tree, fail)
        commands.check(name, lambda: digest_of(value))
        yield commands
