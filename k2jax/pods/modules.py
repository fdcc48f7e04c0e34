"""The commands that can be launched, and what each takes: its flags are checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import importlib
from typing import NamedTuple

from absl import flags

from k2jax import cli
from k2jax.errors import UserError, nearest


class LaunchedModule(NamedTuple):
    """A command that a launch can run.

    Attributes:
        definition: the module that has its ``define``, imported only where the command is launched; empty for the
            trainers, which take ``--config`` and ``--workdir`` alone.
        positional: names of its arguments that are not flags.
        optional: how many of them, from the last, may be left out.
        several_hosts: whether it runs as one process on each of several hosts.
    """

    definition: str
    positional: tuple[str, ...] = ()
    optional: int = 0
    several_hosts: bool = False


MODULES = {
    "k2jax.train": LaunchedModule("", several_hosts=True),
    "k2jax.rl": LaunchedModule("", several_hosts=True),
    "k2jax.rollout": LaunchedModule("k2jax.rollout.__main__"),
    "k2jax.evaluate": LaunchedModule("k2jax.evaluate.__main__", ("SUITE",) * 32, 32),
    "k2jax.evaluate.pictures": LaunchedModule("k2jax.evaluate.pictures"),
    "k2jax.env.check": LaunchedModule("k2jax.tasks.oracle_check", ("dataset",)),
    "k2jax.env.demonstrate": LaunchedModule("k2jax.tasks.demonstrate"),
    "k2jax.tasks.judging.dialogues": LaunchedModule("k2jax.tasks.judging.dialogues"),
    "k2jax.convert": LaunchedModule("k2jax.convert.__main__", ("import|export|tokenizer", "SOURCE"), 1),
    "k2jax.reproduce": LaunchedModule("k2jax.reproduce.__main__", ("NAME",)),
}
OWN = ("config", "workdir", "help", "h")
"""Flags that a launch passes on itself, or that start nothing."""
TRAINERS = {"rl": "k2jax.rl"}
"""By the stage of a config; the others are trained by ``k2jax.train``."""
TRAINING = ("k2jax.train", "k2jax.rl")


def check_module(module: str) -> None:
    """Raises UserError unless there is a command of this name to launch."""
    if module not in MODULES:
        raise UserError(f"--module {module!r} cannot be launched{nearest(module, list(MODULES))}")


def takes(module: str, flag: str) -> bool:
    """Whether a command of ``MODULES`` has a flag."""
    if module in TRAINING:
        return flag in ("config", "workdir")
    values = flags.FlagValues()
    _definition(module)(values)
    return flag in values


def parse_arguments(module: str, config: Sequence[str], words: Sequence[str]) -> flags.FlagValues:
    """The flags of a command line of ``module``, which is none of the trainers.

    Args:
        module: one of ``MODULES``.
        config: ``--config`` and its overrides, which are refused where the command takes none.
        words: its other arguments.

    Raises:
        UserError: it does not take these arguments.
    """
    for word in words:
        if word.startswith("-") and word.lstrip("-").partition("=")[0].partition(".")[0] in OWN:
            raise UserError(f"--arguments has {word}; --config and --workdir are flags of the launch itself")
    if config and not takes(module, "config"):
        raise UserError(f"{module} takes no --config; omit it")
    known = MODULES[module]
    return cli.parse([module, *config, *words], _definition(module), "", known.positional, known.optional)[0]


def _definition(module: str) -> Callable[[flags.FlagValues], None]:
    return importlib.import_module(MODULES[module].definition).define


def check_hosts(command: str, hosts: int, flag: str) -> None:
    """Checks that a command runs on so many hosts, those of the slices that ``flag`` names.

    Raises:
        UserError: it is a single process.
    """
    if hosts > 1 and not (command in MODULES and MODULES[command].several_hosts):
        raise UserError(
            f"{command} is one process, and {flag} has {hosts} hosts; choose a slice of one host, such as v5p:2x2x1"
        )
