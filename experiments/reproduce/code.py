"""A small Kimi K2 learns to test its programs before it answers: imperfect demonstrations, then rewards.

Reproduces: the order of Kimi K2's agentic training on code, at the scale of a laptop: fine-tuning on demonstrations
(Kimi K2, section 3.1.1), then reinforcement learning (sections 3.2 and 3.3) with a real interpreter of Python in a
sandbox of each episode's own; the answer, a program, is judged by unit tests in a fresh one. A task asks in a word for
an expression of a list of numbers and gives an example. Three expressions fit the word, and the interpreter, which
holds the example, tells which fits that too. The teacher tests them in three conversations of ten, and answers any of
them in the others. Beside reinforcement learning stands as much more fine-tuning.
Expected: 64 to 69 points of held-out success over a start of 33 %, in three seeds (docs/reproductions.md).

    python -m k2jax.reproduce code --workdir=runs/code
"""

from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.turns import Turns
from k2jax.tasks.expressions.dataset import FORMS, expression_demonstrations

DEMONSTRATIONS, DIRECT = 24_000, 0.7
"""Conversations of the teacher, and the share of those without a test."""
study = Turns(
    name="code",
    dataset="expressions",
    kinds={kind: f"`{form.format('x')}`" for kind, form in FORMS.items()},
    teachers=("imperfect",),
    sft_steps=480,
    iterations=24,
    steps=5,
    calls=1,
    does="test",
)


def prepare(workdir: Path):
    """Writes the demonstrations."""
    tasks = load_tasks(study.dataset, study.options(DEMONSTRATIONS))
    write_data(workdir, {"imperfect.jsonl": expression_demonstrations(tasks, DIRECT)})


STUDY = study.study(prepare)
get_config, runs, summarize = STUDY.get_config, STUDY.runs, STUDY.summarize
