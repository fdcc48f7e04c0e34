r"""A Kimi K2 of a million parameters learns to call the tools that a chat client declares, on a laptop's CPU.

Reproduces: no report. It makes a model for trying the server, the gateway and agents: Qwen2.5's chat format, tools
declared in the system message, and sums that a calculator does. Loss on the assistant's tokens alone; twelve sums in a
conversation, so that few tokens are declarations. Model and rates are those of nano.py, but for a small vocabulary that
is trained on the conversations: few tokens then stand between a number and its copy.
Expected: calls that are well formed, with wrong numbers: 48 of 48 greedy answers to new sums were calls after 209
steps, 4.6 minutes of processor time, and none had the right numbers. It has learnt the form, and not to copy.

    python -m k2jax.env.demonstrate --to=runs/calls.jsonl --dataset=tool_use --kinds=calc1 --direct=0 --declare \
        --turns=12 --tokenizer=runs/calls-tokenizer
    python -m k2jax.train --config=experiments/sft/agent_nano.py --workdir=runs/agent-nano
    python -m k2jax.gateway --checkpoint=runs/agent-nano --workdir=runs/agents
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"calls": source(kind="chat", path="runs/calls.jsonl")}
    config.data.tokenizer.update({"kind": "file", "path": "runs/calls-tokenizer"})
    config.data.chat_format = "auto"
    config.model.vocab = 512
    config.data.sequence_length = 1024
    config.train.steps = 200
    config.train.batch_size = 8
    config.train.patience = 0
    config.eval.every = 50
    config.eval.rows = 8
    return config
