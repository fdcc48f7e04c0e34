"""Starts an engine that follows a run of ``python -m k2jax.rl`` with ``rl.engines.placement=separate``.

Example:
    python -m k2jax.rollout engine --follow=runs/rl-terminal

The engine takes each version of the weights that the run publishes and answers the run's episodes with them, on devices
of its own. It waits until there are weights, may be started and stopped at any time of a run, waits for a run that was
killed to go on, and ends when the run does.
"""

from pathlib import Path

from absl import flags

from k2jax import cli, runtime


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("follow", None, "Workdir of the run.", **to)
    text = "End when standard input ends, as the engines do that a run starts itself."
    flags.DEFINE_bool("ends_with_input", False, text, **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "follow")
    runtime.prepare()
    from k2jax.serve.run_engine import main as serve

    serve(Path(values.follow), values.ends_with_input)
