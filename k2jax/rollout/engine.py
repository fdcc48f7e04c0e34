"""Starts an engine that follows a run of ``python -m k2jax.rl`` with ``rl.engines.placement=separate``.

Example:
    python -m k2jax.rollout engine --follow=runs/rl-terminal

The engine takes each version of the weights that the run publishes and answers the run's episodes with them, on devices
of its own. It waits until there are weights, may be started and stopped at any time of a run, waits for a run that was
killed to go on, and ends when the run does. In a run with frozen roles (config.rl.roles) the run moves engines between
the policy and the roles as their requests ask for; --role says where one begins.

Where a model needs the devices of several hosts, start the same command on each of them with JAX_COORDINATOR_ADDRESS
(HOST:PORT of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID, as for the training; on Cloud TPU and GKE they find each
other. Together they are one engine: when one of them is lost, all end with one line that names it.
"""

from pathlib import Path
import sys

from absl import flags

from k2jax import cli, processes, runtime
from k2jax.trajectory.steps import POLICY


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("follow", None, "Workdir of the run.", **to)
    flags.DEFINE_string("role", POLICY, "Whose weights it has at first: the policy's, or one of config.rl.roles.", **to)
    text = "End when standard input ends, as the engines do that a run starts itself."
    flags.DEFINE_bool("ends_with_input", False, text, **to)


def main(values: flags.FlagValues) -> int:
    """Runs the command; returns its exit code."""
    cli.require(values, "follow")
    runtime.prepare()
    if not values.ends_with_input:  # else the variables are those of the run, whose process has started this one
        try:
            processes.start(name="the engine")
        except processes.ProcessLostError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        processes.end_on_signals()
    from k2jax.serve.run_engine import main as serve

    return serve(Path(values.follow), values.ends_with_input, values.role)
