"""A Kimi K2 of a million parameters learns when to call a calculator and a key-value store, on a laptop's CPU.

Reproduces: the structure of Kimi K2's reinforcement learning in environments of several turns (Kimi K2, section 3.2),
not its scale: the model calls tools in a compact action language, sees their results, and answers; the reward is that
of the answer alone. Model, objective and rates are those of nano.py.
Expected: 20 points and more of held-out success over the fine-tuned start; the study experiments/reproduce/tools.py has
the same runs over three seeds, and docs/reproductions.md their figures.

    python -m k2jax.env.demonstrate --to=runs/easy.jsonl --dataset=tool_use --kinds=calc1,hop1 --count=12000 --direct=0
    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use --direct=0.7
    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
    python -m k2jax.rl --config=experiments/rl/tools_nano.py --workdir=runs/rl-tools-nano
"""

from k2jax.config import config_beside, task


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.init_from = "runs/sft-tools-nano"
    config.data.chat_format = "compact"
    config.rl.tasks = {
        "tools": task(dataset="tool_use", options=("kinds=calc2+kv2+hop2", "count=20000"), max_tokens=32, steps=6)
    }
    config.rl.rollout.update({"prompts": 32, "max_length": 160})
    config.train.steps = 40
    config.eval.every = 10
    return config
