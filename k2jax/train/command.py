"""The command line that all training loops share."""

from __future__ import annotations

import importlib
import shlex
import sys

from absl import flags

from k2jax import cli, processes, runtime
from k2jax.errors import UserError, abbreviate

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # how XLA's errors of this kind begin
_LESS_MEMORY = (
    "raise config.train.micro_batches, lower config.data.sequence_length or config.rl.rollout.slots, or set "
    "config.train.remat"
)


def first_line(error: Exception) -> str:
    """The beginning of an error's first line."""
    return abbreviate(str(error).partition("\n")[0], 200)


def run_loop(package: str, doc: str) -> None:
    """Parses the command line of ``python -m PACKAGE``, trains in this process as one of its run, and exits.

    Args:
        package: whose module ``loop`` has a function ``train(config, workdir, command)`` that returns the exit code.
        doc: printed by ``--help``, above the flags.
    """

    def main(values: flags.FlagValues) -> int:
        cli.require(values, "config", "workdir")
        runtime.pause_collection()  # until the first step is logged
        config = cli.config_of(values)
        runtime.prepare()
        try:
            processes.start()
        except processes.ProcessLostError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        command = f"python -m {package} {shlex.join(sys.argv[1:])}"

        def train() -> int:
            try:
                return importlib.import_module(f"{package}.loop").train(config, values.workdir, command)
            except RuntimeError as error:
                if _OUT_OF_MEMORY not in str(error):
                    raise
                raise UserError(f"the devices are out of memory ({first_line(error)}); {_LESS_MEMORY}") from error

        return processes.run_and_exit(train)

    cli.run(main, _define, doc)


def _define(values: flags.FlagValues) -> None:
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the run: created, or resumed from.", flag_values=values)
