"""Trains the experiment of a config file; run again, it resumes from its workdir by itself.

Example:
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/nano
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/short --config.train.steps=30

Several processes train together when each is started with JAX_COORDINATOR_ADDRESS=HOST:PORT of process 0,
JAX_NUM_PROCESSES and JAX_PROCESS_ID, the same command and a workdir that all see; on Cloud TPU and GKE they find each
other. All end with one exit code; SIGTERM to one saves and stops all.

Exit codes: 0 finished; 2 a mistake in the command, the config or the data; 3 stopped on a non-finite loss, gradient or
logit; 143 after SIGTERM and 130 after Ctrl-C (143 with several processes), with a checkpoint saved;
1 a bug, or a process that was lost.
"""

import shlex
import sys

from absl import flags

from k2jax import cli, processes, runtime


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the run: created, or resumed from.", flag_values=values)


def main(values: flags.FlagValues) -> int:
    """Runs the command."""
    cli.require(values, "config", "workdir")
    config = cli.config_of(values)
    runtime.prepare()
    try:
        processes.start()
    except processes.ProcessLostError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1

    def run() -> int:
        from k2jax.train.loop import train

        return train(config, values.workdir, f"python -m k2jax.train {shlex.join(sys.argv[1:])}")

    return processes.run_and_exit(run)


if __name__ == "__main__":
    cli.run(main, define, __doc__)
