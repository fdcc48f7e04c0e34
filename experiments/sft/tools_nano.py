"""A Kimi K2 of a million parameters learns to call tools from an imperfect teacher, on a laptop's CPU.

Reproduces: the structure of fine-tuning on agentic demonstrations (Kimi K2, section 3.1.1), not its scale: calls of a
calculator and of a key-value store, their results, and answers, in the compact format of conversations. Loss on the
assistant's tokens alone. The teacher calls tools for easier problems of a single call, and answers most others at once,
which nobody can learn where the contents of the store decide. Model and rates are those of nano.py.
Expected: about half of new problems are then solved (greedy); the study experiments/reproduce/tools.py has the same
runs over three seeds, and docs/reproductions.md its figures.

    python -m k2jax.env.demonstrate --to=runs/easy.jsonl --dataset=tool_use --kinds=calc1,hop1 --count=12000 --direct=0
    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use --direct=0.7
    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {
        "easier": source(kind="chat", path="runs/easy.jsonl"),
        "tools": source(kind="chat", path="runs/tools.jsonl"),
    }
    config.data.chat_format = "compact"
    config.train.steps = 720
    config.train.patience = 0
    return config
