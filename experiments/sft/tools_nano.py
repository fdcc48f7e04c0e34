"""A Kimi K2 of a million parameters learns to call tools from an imperfect teacher, on a laptop's CPU.

Reproduces: the structure of fine-tuning on agentic demonstrations (Kimi K2, section 3.1.1), not its scale: calls of a
calculator and of a key-value store, their results, and answers, in the compact format of conversations. Loss on the
assistant's tokens alone. The teacher answers most problems at once, which a small model learns badly. Model and rates
are those of nano.py.
Expected: not measured.

    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use
    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"tools": source(kind="chat", path="runs/tools.jsonl")}
    config.data.chat_format = "compact"
    return config
