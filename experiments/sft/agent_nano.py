r"""A Kimi K2 of a million parameters learns to call the tools that a chat client declares, on a laptop's CPU.

Reproduces: no report. It makes a model for trying the server, the gateway and agents: bytes with the special tokens of
Qwen2.5's chat format, tools declared in the system message, and sums that a calculator does. Loss on the assistant's
tokens alone. Model and rates are those of nano.py; a conversation has nine sums, so that few tokens are declarations.
Expected: TODO

    python -m k2jax.env.demonstrate --to=runs/calls.jsonl --dataset=tool_use --kinds=calc1 --direct=0 --declare \
        --turns=9
    python -m k2jax.train --config=experiments/sft/agent_nano.py --workdir=runs/agent-nano
    python -m k2jax.gateway --checkpoint=runs/agent-nano --workdir=runs/agents
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"calls": source(kind="chat", path="runs/calls.jsonl")}
    config.data.tokenizer.chat = True
    config.data.chat_format = "auto"
    config.model.vocab = 262  # bytes, two tokens around documents, four of the chat format
    config.data.sequence_length = 2048
    config.train.steps = 300
    config.train.batch_size = 4
    config.train.patience = 0
    config.eval.every = 50
    config.eval.rows = 8
    return config
