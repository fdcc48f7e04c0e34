r"""Makes data: tools, agents, tasks with simulated users and worlds, dialogues and verdicts; or rephrasings of texts.

Example:
    python -m k2jax.synthesize --config=experiments/synthesis/tool_use.py --workdir=runs/tool-use
    python -m k2jax.synthesize --config=experiments/synthesis/tool_use.py --workdir=runs/tool-use-k2 \
        --config.tool_use.tasks=50
    python -m k2jax.synthesize --config=experiments/synthesis/rephrase.py --workdir=runs/rephrase

A model is asked for what has to be written, acted and judged: name a server with OpenAI's chat completions for a role
(writer, agent, user, judge) in the config's ``models``; $OPENAI_API_KEY is sent to it. Other roles are played by
programs, with which a run needs no model and takes a minute or two.

The workdir gets what was kept at every stage, funnel.json and funnel.png, samples.html, manifest.json, and of tool use
sft.jsonl (which python -m k2jax.train reads as kind=chat) and tasks.jsonl (which python -m k2jax.rl reads as
dataset=worlds path=...), of rephrasing raw.jsonl and rephrasings/ (kind=jsonl). A command that was stopped or killed
goes on when it is given again. With --replay the answers of another run are taken instead of asking models.
"""

import asyncio

from absl import flags

from k2jax import cli
from k2jax.synthesize.settings import SynthesisConfig


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    cli.define_config(values)
    flags.DEFINE_string("workdir", None, "Folder of the run.", **to)
    flags.DEFINE_string("replay", "", "Workdir of a run whose answers are taken; empty asks the models.", **to)
    flags.DEFINE_integer("workers", 2, "Processes, or actors with --ray.", **to, lower_bound=1)
    flags.DEFINE_integer("at_once", 32, "Records of each process at a time.", **to, lower_bound=1)
    flags.DEFINE_string("ray", "", "Address of a Ray cluster, auto, or local; empty for processes here.", **to)


def main(values: flags.FlagValues) -> int:
    """Runs the command; returns its exit code."""
    cli.require(values, "config", "workdir")
    from k2jax.synthesize.pipeline import Machines, Synthesis
    from k2jax.synthesize.settings import resolved

    machines = Machines(values.workers, values.at_once, values.ray)
    run = Synthesis(values.workdir, resolved(values.config), machines, values.replay)
    try:
        asyncio.run(run.run())
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on")
        return 130
    print(f"{values.workdir}/samples.html shows what was kept and dropped")
    return 0


if __name__ == "__main__":
    cli.run(main, define, __doc__, config_type=SynthesisConfig)
