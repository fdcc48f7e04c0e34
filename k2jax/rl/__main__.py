"""Reinforcement learning of the experiment of a config file; run again, it resumes from its workdir by itself.

Example:
    python -m k2jax.rl --config=experiments/rl/nano.py --workdir=runs/rl --config.init_from=runs/sft

Several processes train together as with k2jax.train.

Exit codes: 0 finished; 2 a mistake in the command, the config or the tasks; 3 stopped on a non-finite loss, gradient or
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
        from k2jax.rl.loop import train

        return train(config, values.workdir, f"python -m k2jax.rl {shlex.join(sys.argv[1:])}")

    return processes.run_and_exit(run)


if __name__ == "__main__":
    cli.run(main, define, __doc__)
