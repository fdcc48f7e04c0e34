"""A Kimi K2 of a million parameters learns commands of a shell from an imperfect teacher, on a laptop's CPU.

Reproduces: the structure of fine-tuning on agentic demonstrations (Kimi K2, section 3.1.1), not its scale: commands,
what they print, and an end, in the compact format of conversations. Loss on the assistant's tokens alone. The teacher
looks into the files before it acts in three conversations of ten, and takes any file in the others. Model and rates
are those of nano.py.
Expected: 33 % of new tasks are then solved greedily, 50 % by samples (500 tasks, one seed); the study
experiments/reproduce/terminal.py has the same runs, and docs/reproductions.md its figures.

    python -m k2jax.env.demonstrate --to=runs/terminal.jsonl --dataset=commands --direct=0.7
    python -m k2jax.train --config=experiments/sft/terminal_nano.py --workdir=runs/sft-terminal-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"terminal": source(kind="chat", path="runs/terminal.jsonl")}
    config.data.chat_format = "compact"
    config.train.steps = 480
    config.train.patience = 0
    return config
