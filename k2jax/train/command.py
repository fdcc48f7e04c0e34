"""The command line that all training loops share."""

from __future__ import annotations

import importlib
import shlex
import sys

from absl import flags

from k2jax import cli, processes, runtime


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
        return processes.run_and_exit(
            lambda: importlib.import_module(f"{package}.loop").train(config, values.workdir, command)
        )

    cli.run(main, _define, doc)


def _define(values: flags.FlagValues) -> None:
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the run: created, or resumed from.", flag_values=values)
