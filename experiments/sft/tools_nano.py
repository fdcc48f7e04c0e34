"""A Kimi K2 of a million parameters learns to call tools from an imperfect teacher, on a laptop's CPU.

Reproduces: the structure of fine-tuning on agentic demonstrations (Kimi K2, section 3.1.1), not its scale: calls of a
calculator and of a key-value store, their results, and answers, in the compact format of conversations. Loss on the
assistant's tokens alone. The teacher answers most problems at once, which a small model learns badly.
Expected: not measured.

    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use
    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("sft", model="micro")
    config.data.sources = {"tools": source(kind="chat", path="runs/tools.jsonl")}
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "compact"
    config.data.sequence_length = 256
    config.data.held_out = 0.03
    config.train.steps = 400
    config.train.batch_size = 16
    config.train.patience = 3
    config.optimizer.learning_rate = 1e-2
    config.router.bias_rate = 5e-2  # the report's 1e-3 would not balance anything in so few steps
    config.router.bias_rate_final = 1e-3
    config.eval.every = 40
    config.eval.rows = 0
    config.eval.sample_tokens = 48
    config.eval.sample_temperature = 0.0
    return config
