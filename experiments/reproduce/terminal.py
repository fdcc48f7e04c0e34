"""A small Kimi K2 learns to look before it acts in a terminal: imperfect demonstrations, then rewards.

Reproduces: the order of Kimi K2's agentic training in a terminal, at the scale of a laptop: fine-tuning on
demonstrations (Kimi K2, section 3.1.1), then reinforcement learning (sections 3.2 and 3.3) with real commands of a
shell in a sandbox of each episode's own; a test in a fresh one judges the file that is left. A task names three files,
a letter that one of them holds, and what is to be made of this file. What the files hold is in no prompt: the teacher
looks with ``grep`` in three conversations of ten, and takes any of the files in the others. Beside reinforcement
learning stands as much more fine-tuning.
Expected: 20 points and more of held-out success over a start of 20 to 60 % (docs/reproductions.md).

    python -m k2jax.reproduce terminal --workdir=runs/terminal
"""

from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.turns import Turns
from k2jax.tasks.commands.dataset import COMMANDS, command_demonstrations

DEMONSTRATIONS, DIRECT = 24_000, 0.7
"""Conversations of the teacher, and the share of those in which it does not look."""
study = Turns(
    name="terminal",
    dataset="commands",
    kinds={kind: f"`{command}`" for kind, command in COMMANDS.items()},
    teachers=("imperfect",),
    sft_steps=480,
    iterations=24,
    steps=4,
    calls=2,
    does="look",
)


def prepare(workdir: Path):
    """Writes the demonstrations."""
    tasks = load_tasks(study.dataset, study.options(DEMONSTRATIONS))
    write_data(workdir, {"imperfect.jsonl": command_demonstrations(tasks, DIRECT)})


STUDY = study.study(prepare)
get_config, runs, summarize = STUDY.get_config, STUDY.runs, STUDY.summarize
