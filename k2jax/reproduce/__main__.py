"""Runs a reproduction: every run of ``experiments/reproduce/NAME.py``, then its table and picture.

Each run has its own workdir under --workdir; runs that are done are kept, one that was killed resumes. The results are
``table.md`` and ``NAME.png`` in the workdir.

Example:
    python -m k2jax.reproduce qk_clip --workdir=runs/qk_clip
    python -m k2jax.reproduce sparsity --workdir=runs/quick --steps=20   # a quick look, in a workdir of its own
"""

from absl import flags

from k2jax import cli, runtime


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_string("workdir", None, "Folder of the study.", flag_values=values)
    flags.DEFINE_integer(
        "steps", None, "Shorten the longest run to this, the others in proportion.", lower_bound=1, flag_values=values
    )


def main(values: flags.FlagValues, name: str) -> int:
    """Runs the command."""
    cli.require(values, "workdir")
    runtime.prepare()

    from k2jax.reproduce.study import reproduce

    return reproduce(name, values.workdir, values.steps)


if __name__ == "__main__":
    cli.run(main, define, __doc__, positional=("NAME",))
