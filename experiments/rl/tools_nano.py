"""A Kimi K2 of a million parameters learns when to call a calculator and a key-value store, on a laptop's CPU.

Reproduces: the structure of Kimi K2's reinforcement learning in environments of several turns (Kimi K2, section 3.2),
not its scale: the model calls tools in a compact action language, sees their results, and answers; the reward is that
of the answer alone.
Expected: not measured.

    python -m k2jax.env.demonstrate --to=runs/tools.jsonl --dataset=tool_use
    python -m k2jax.train --config=experiments/sft/tools_nano.py --workdir=runs/sft-tools-nano
    python -m k2jax.rl --config=experiments/rl/tools_nano.py --workdir=runs/rl-tools-nano
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="micro")
    config.init_from = "runs/sft-tools-nano/best"
    config.data.chat_format = "compact"
    config.data.sequence_length = 256
    config.rl.tasks = {
        "tools": task(dataset="tool_use", options=("kinds=calc2+kv2+hop2", "count=20000"), max_tokens=32, steps=6)
    }
    config.rl.rollout.prompts = 64
    config.rl.rollout.samples = 8
    config.rl.rollout.max_length = 160
    config.rl.updates = 4
    config.rl.skip_flat_groups = True
    config.train.steps = 60
    config.train.batch_size = 16
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule.warmup_steps = 2
    config.router.bias_rate = 0.0  # the routes of the policy rest
    config.router.bias_rate_final = 0.0
    config.checkpoint.every = 10
    config.eval.every = 12
    return config
