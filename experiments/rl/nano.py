"""A Kimi K2 of a million parameters learns to reason about characters, by verifiable rewards, on a laptop's CPU.

Reproduces: the structure of Kimi K2.5's reinforcement learning (K2.5, section 4 and equation 1), not its scale: K
responses to each prompt by the engine on the training's devices, rewards of exact verifiers, advantages of groups, the
token-clipped objective, MuonClip, weights back to the engine.
Expected: of 128 held-out problems 64 % are right before the first iteration and 94 % after the last (greedy; 95 %
intervals 55 to 72 % and 88 to 97 %), of sampled answers 45 % and 86 %, all on one seed. It takes six minutes of
processor time, 18 minutes on two CPU cores that other work shared. Over three seeds and against other ways to spend
the same tokens: experiments/reproduce/nano_post_training.py.

    python -m k2jax.env.demonstrate --to=runs/characters.jsonl
    python -m k2jax.train --config=experiments/sft/nano.py --workdir=runs/sft-nano
    python -m k2jax.rl --config=experiments/rl/nano.py --workdir=runs/rl-nano
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="micro")
    config.init_from = "runs/sft-nano/best"
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    options = ("kinds=add3+sum6+sort6", "count=20000")
    config.rl.tasks = {"characters": task(dataset="characters", options=options, max_tokens=64)}
    config.rl.rollout.prompts = 64
    config.rl.rollout.samples = 8
    config.rl.rollout.max_length = 96
    config.rl.updates = 4
    config.rl.skip_flat_groups = True
    config.train.steps = 70
    config.train.batch_size = 16
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule.warmup_steps = 2
    config.router.bias_rate = 0.0  # the routes of the policy rest
    config.router.bias_rate_final = 0.0
    config.checkpoint.every = 10
    config.eval.every = 14
    return config
