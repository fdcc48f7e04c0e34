"""The log of commands of a run, opened."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools

from k2jax import processes
from k2jax.config.build import to_json
from k2jax.config.schema import Config
from k2jax.processes.command_tree import MessageTree
from k2jax.processes.membership import current_group
from k2jax.rl.followers.commands import ALONE, Commands
from k2jax.rl.followers.controller import Controller
from k2jax.rl.followers.digests import digest_of
from k2jax.rl.followers.follower import Follower


@contextlib.contextmanager
def open_commands(config: Config) -> Iterator[Commands]:
    """Connects the processes of a run, whose configurations have to be equal.

    Raises:
        UserError: a process speaks another version.
        ProcessLostError: some do not connect.
    """
    group = current_group()
    if group is None:
        yield ALONE
        return
    with MessageTree(group, "commands") as tree:
        fail = functools.partial(group.stop, code=1, failed=group.index)
        commands = Controller(tree) if processes.is_first() else Follower(tree, fail)
        commands.check("the configuration", lambda: digest_of(to_json(config)))
        yield commands
