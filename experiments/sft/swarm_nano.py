"""A Kimi K2 of a million parameters learns to look up keys one after another, and seldom by sub-agents, on a CPU.

Reproduces: the start of Kimi K2.5's orchestrator (K2.5, section 3), which works serially, and of its sub-agents, at the
scale of a laptop: calls of a key-value store, and in 8 % of wide questions calls that create sub-agents and give each a
key, in the compact format of conversations. In 30 % such calls stand there and only the answer behind them is trained
on: the orchestrator seldom makes them, and can read what comes of them. A quarter of the questions are of one key, as
sub-agents are asked them. Loss on the assistant's tokens alone. Model and rates are those of nano.py.
Expected: over three seeds, greedily all work is serial (parallelism 1.00) and 0.48 (0.45 to 0.51) of the keys of new
questions are right, because the budget of steps cuts six and eight keys; sampled parallelism is 1.11 to 1.26. 6 minutes
on two CPU cores. The study experiments/reproduce/swarm.py has the same run.

    python -m k2jax.env.demonstrate --to=runs/lookups.jsonl --dataset=lookups --parallel=0.08 --count=18000
    python -m k2jax.env.demonstrate --to=runs/single-lookups.jsonl --dataset=lookups --kinds=wide1 --count=6000
    python -m k2jax.train --config=experiments/sft/swarm_nano.py --workdir=runs/sft-swarm-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {
        "wide": source(kind="chat", path="runs/lookups.jsonl", weight=3.0),
        "single": source(kind="chat", path="runs/single-lookups.jsonl"),
    }
    config.data.chat_format = "compact"
    config.data.sequence_length = 352
    config.train.steps = 1280
    config.train.patience = 0
    config.eval.sample_tokens = 0
    return config
