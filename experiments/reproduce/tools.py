"""A small Kimi K2 learns to solve problems with tools over several turns: imperfect demonstrations, then rewards.

Reproduces: the order of Kimi K2's agentic training, at the scale of a laptop: fine-tuning on demonstrations of tool use
(Kimi K2, section 3.1.1), then reinforcement learning in environments of several turns (sections 3.2 and 3.3), of whose
episodes only the last answer is judged. A calculator does one operation at a time, and a store gives the value of one
key: chains of two operations, sums of two stored numbers, and keys that lead to keys take two to four turns. The
contents of the store are in no prompt. The teacher calls the tools for easier problems of a single call, and for a part
of the problems; most of those it answers at once, which nobody can learn. Beside reinforcement learning stands as much
more fine-tuning.
Expected: 20 points and more of held-out success over a start of 20 to 60 %; docs/reproductions.md has the figures.

    python -m k2jax.reproduce tools --workdir=runs/tools
"""

from pathlib import Path

from k2jax.agents.dataset import load_tasks
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.turns import Turns
from k2jax.tasks.tool_use.demonstrations import tool_demonstrations

DEMONSTRATIONS, DIRECT = 24_000, 0.7
"""Conversations of the teacher on the problems, and the share of those without a call."""
EASIER = "calc1+hop1"
"""Problems that are always demonstrated with tools."""
study = Turns(
    name="tools",
    dataset="tool_use",
    kinds={"calc2": "two operations", "kv2": "sum of two values", "hop2": "key to key to number"},
    teachers=("easier", "imperfect"),
    sft_steps=720,
    iterations=40,
    steps=6,
    calls=1,
    does="call",
)


def prepare(workdir: Path):
    """Writes the demonstrations."""
    easier = load_tasks(study.dataset, study.options(DEMONSTRATIONS // 2, EASIER))
    problems = load_tasks(study.dataset, study.options(DEMONSTRATIONS))
    files = {"easier": tool_demonstrations(easier, direct=0.0), "imperfect": tool_demonstrations(problems, DIRECT)}
    write_data(workdir, {f"{name}.jsonl": records for name, records in files.items()})


STUDY = study.study(prepare)
get_config, runs, summarize = STUDY.get_config, STUDY.runs, STUDY.summarize
