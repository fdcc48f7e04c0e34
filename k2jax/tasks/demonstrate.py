r"""Writes demonstrations of small problems as chat data for supervised fine-tuning.

Example:
    python -m k2jax.env.demonstrate --to=runs/characters.jsonl
    python -m k2jax.env.demonstrate --to=runs/clean.jsonl --kinds=add3,sort6 --count=5000 --direct=0
    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use
    python -m k2jax.env.demonstrate --to=runs/lookups.jsonl --dataset=lookups --parallel=0.08
    python -m k2jax.env.demonstrate --to=runs/pictures.jsonl --dataset=picture_tools --count=500
    python -m k2jax.env.demonstrate --to=runs/calls.jsonl --dataset=tool_use --kinds=calc1 --direct=0 --declare \
        --turns=12 --tokenizer=runs/calls-tokenizer

Each line is a conversation of one question and one answer, or with datasets that have tools (commands, expressions,
lookups, picture_tools, tool_use) of calls, results and the answer. The teacher writes the share --direct of its answers
at once, without working, calls or a look at the files, which often goes wrong: what reinforcement learning can then
improve. Of picture_tools it writes none unless asked: they are right, and nothing in a question of text leads to them.
The calls of picture_tools are really carried out, in a sandbox for each conversation. Of lookups it gives the share
--parallel to sub-agents of the toolset swarm, and looks up the keys of the others one after another.

--declare writes the tools of each conversation beside it and the arguments of calls by name, as the chat formats of
Kimi, Qwen and Llama have them; without it calls are of the compact format. --turns puts so many problems into a
conversation, one after the other. --tokenizer trains a vocabulary on the conversations, so that declarations and the
scaffolding of calls are few tokens: digits stay apart.
"""

import inspect

from absl import flags

from k2jax import cli
from k2jax.errors import UserError
from k2jax.files.atomic import write_json_lines
from k2jax.tasks.characters.dataset import CharacterTasks
from k2jax.tasks.characters.teacher import demonstrations
from k2jax.tasks.commands.dataset import CommandTasks, command_demonstrations
from k2jax.tasks.declared_tools import chat_tokenizer, joined_turns, with_declared_tools
from k2jax.tasks.expressions.dataset import ExpressionTasks, expression_demonstrations
from k2jax.tasks.lookups.dataset import LookupTasks
from k2jax.tasks.lookups.demonstrations import lookup_demonstrations
from k2jax.tasks.pictures.oracle import picture_demonstrations
from k2jax.tasks.pictures.tools import PictureTools
from k2jax.tasks.tool_use.dataset import ToolUseTasks
from k2jax.tasks.tool_use.demonstrations import tool_demonstrations

_TEACHERS = {
    "characters": (CharacterTasks, demonstrations),
    "commands": (CommandTasks, command_demonstrations),
    "expressions": (ExpressionTasks, expression_demonstrations),
    "lookups": (LookupTasks, lookup_demonstrations),
    "picture_tools": (PictureTools, picture_demonstrations),
    "tool_use": (ToolUseTasks, tool_demonstrations),
}


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("to", None, "File to write, JSON lines.", **to)
    flags.DEFINE_enum("dataset", "characters", list(_TEACHERS), "Dataset of the problems.", **to)
    flags.DEFINE_list("kinds", None, "Kinds of problems, each with its size; by default the dataset's.", **to)
    flags.DEFINE_integer("count", 24000, "Number of problems, all distinct.", **to, lower_bound=2)
    flags.DEFINE_float("direct", None, "Share of answers without working or calls; None is the dataset's own.", **to)
    flags.DEFINE_float("parallel", None, "Share of wide questions that sub-agents answer, of lookups.", **to)
    flags.DEFINE_boolean("declare", False, "Declare tools, and write arguments by name.", **to)
    flags.DEFINE_integer("turns", 1, "Problems of a conversation; they must have the same tools.", **to, lower_bound=1)
    flags.DEFINE_string("tokenizer", None, "Folder to write a tokenizer into, with Qwen2.5's chat tokens.", **to)
    flags.DEFINE_integer("vocab", 512, "Entries of that tokenizer.", **to, lower_bound=2)
    flags.DEFINE_integer("seed", 0, "Seed of problems and styles.", **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "to")
    dataset, teacher = _TEACHERS[values.dataset]
    kinds = {"kinds": tuple(values.kinds)} if values.kinds else {}
    tasks = list(dataset(count=values.count, seed=values.seed, **kinds).load())
    styles = {name: values[name].value for name in ("direct", "parallel") if values[name].value is not None}
    for name in styles:
        if name not in inspect.signature(teacher).parameters:
            raise UserError(f"the teacher of {values.dataset} has no share --{name}; leave it out")
    records = teacher(tasks, seed=values.seed, **styles)
    if values.declare:
        records = with_declared_tools(tasks, records)
    records = list(joined_turns(records, values.turns))
    count = write_json_lines(values.to, records)
    print(f"{count:,} conversations in {values.to}")
    if values.tokenizer:
        tokenizer = chat_tokenizer(records, values.vocab)
        tokenizer.save(values.tokenizer)
        print(f"a tokenizer of {tokenizer.vocab_size:,} entries in {values.tokenizer}")


def command() -> None:
    """Runs the command line."""
    cli.run(main, define, __doc__)
