"""Runs a study: every run of ``experiments/reproduce/NAME.py``, then its table and plot.

Each run has its own workdir under --workdir. Finished runs are kept, and interrupted runs resume. The results are
``table.md`` and ``NAME.png`` in the workdir.

--only names the runs to do by a pattern, so that several machines, or several processes of one, share a study; the same
command without it does what is left and writes the summary.

Example:
    python -m k2jax.reproduce qk_clip --workdir=runs/qk_clip
    python -m k2jax.reproduce nano_post_training --workdir=runs/npt --only='seed1_*'
    python -m k2jax.reproduce sparsity --workdir=runs/quick --steps=20   # a quick look, in a separate workdir
"""

from absl import flags

from k2jax import cli, runtime


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_string("workdir", None, "Folder of the study.", flag_values=values)
    flags.DEFINE_integer(
        "steps",
        None,
        "Steps of the longest run; others are shortened in proportion.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_string("only", None, "Do the runs that match this pattern, without a summary.", flag_values=values)


def main(values: flags.FlagValues, name: str) -> int:
    """Runs the command."""
    cli.require(values, "workdir")
    runtime.prepare()

    from k2jax.reproduce.study import reproduce

    return reproduce(name, values.workdir, values.steps, values.only)


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("NAME",))
