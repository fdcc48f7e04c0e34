"""Trains the experiment of a config file; run again, it resumes from its workdir by itself.

Example:
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/nano
    python -m k2jax.train --config=experiments/pretrain/nano.py --workdir=runs/short --config.train.steps=30

Exit codes: 0 finished; 2 a mistake in the command, the config or the data; 3 stopped on a non-finite loss, gradient or
logit; 143 after SIGTERM and 130 after Ctrl-C, with a checkpoint saved; 1 a bug.
"""

from absl import flags

from k2jax import cli, runtime


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the run: created, or resumed from.", flag_values=values)


def main(values: flags.FlagValues) -> int:
    """Runs the command."""
    cli.require(values, "config", "workdir")
    config = cli.config_of(values)
    runtime.prepare()

    from k2jax.train.loop import train

    return train(config, values.workdir)


if __name__ == "__main__":
    cli.run(main, define, __doc__)
