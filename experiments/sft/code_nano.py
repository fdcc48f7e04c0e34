"""A Kimi K2 of a million parameters learns to write and test programs from an imperfect teacher, on a laptop's CPU.

Reproduces: the structure of fine-tuning on agentic demonstrations (Kimi K2, section 3.1.1), not its scale: tests in an
interpreter of Python, what they print, and a program as the answer, in the compact format of conversations. Loss on
the assistant's tokens alone. The teacher tests its programs in three conversations of ten, and answers any that fits
the task's word in the others. Model and rates are those of nano.py.
Expected: not measured; the study experiments/reproduce/code.py has the same runs over three seeds.

    python -m k2jax.env.demonstrate --to=runs/code.jsonl --dataset=expressions --direct=0.7
    python -m k2jax.train --config=experiments/sft/code_nano.py --workdir=runs/sft-code-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"code": source(kind="chat", path="runs/code.jsonl")}
    config.data.chat_format = "compact"
    config.train.steps = 480
    config.train.patience = 0
    return config
