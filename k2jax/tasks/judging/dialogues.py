"""Writes judge's dialogues as chat data for supervised fine-tuning, from preference pairs or character problems.

Example:
    python -m k2jax.tasks.judging.dialogues --preferences=pairs.jsonl --to=runs/judge.jsonl
    python -m k2jax.tasks.judging.dialogues --kinds=add3,sort6 --format=compact --to=runs/judge.jsonl

A line of --preferences has the fields prompt, first, second and verdict (first, second or tie), and may have rubric,
reasons and domain. Each pair becomes two conversations, one in each order.
"""

from absl import flags

from k2jax import cli
from k2jax.agents.judges.judge_formats import JUDGE_FORMATS
from k2jax.agents.judges.rubrics import load_rubrics
from k2jax.errors import UserError
from k2jax.files.atomic import write_json_lines
from k2jax.tasks.characters.dataset import CharacterTasks
from k2jax.tasks.judging.preferences import character_preferences, judge_dialogues, read_preferences


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("to", None, "File to write, JSON lines.", **to)
    flags.DEFINE_string("preferences", None, "Preference pairs, JSON lines; by default pairs of --kinds.", **to)
    flags.DEFINE_list("kinds", ["add3", "sum6", "sort6"], "Kinds of character problems, each with its size.", **to)
    flags.DEFINE_integer("count", 6000, "Number of problems, all distinct.", **to, lower_bound=1)
    flags.DEFINE_float("direct", 0.0, "Share of pairs of answers without working.", **to)
    flags.DEFINE_integer("seed", 0, "Seed of problems, mistakes and orders.", **to)
    flags.DEFINE_enum("format", "chat", sorted(JUDGE_FORMATS), "Format of the judge's question.", **to)
    flags.DEFINE_list("rubrics", [], "Files of rubrics, for --format=chat; by default the packaged ones.", **to)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "to")
    if values.format == "compact" and values.rubrics:
        raise UserError("--rubrics are not read with --format=compact; write --format=chat")
    rubrics = () if values.format == "compact" else load_rubrics(values.rubrics)
    if values.preferences:
        preferences = read_preferences(values.preferences)
    else:
        tasks = CharacterTasks(tuple(values.kinds), values.count, values.seed).load()
        preferences = character_preferences(tasks, values.direct, values.seed)
    count = write_json_lines(values.to, judge_dialogues(preferences, values.format, rubrics))
    print(f"{count:,} conversations in {values.to}")


if __name__ == "__main__":
    cli.run(main, define, __doc__)
