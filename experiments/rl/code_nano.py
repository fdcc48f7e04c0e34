"""A Kimi K2 of a million parameters learns to test its programs before it answers, on a laptop's CPU.

Reproduces: the structure of Kimi K2's reinforcement learning in environments of several turns (Kimi K2, section 3.2),
not its scale: every episode has a sandbox of its own, with an interpreter of Python in which the model tests programs;
the reward is that of unit tests, run in a fresh sandbox, of the program that it answers. Model, objective and rates
are those of nano.py.
Expected: nearly every held-out task, over a start of a third of them, as in the study experiments/reproduce/code.py.

    python -m k2jax.env.demonstrate --to=runs/code.jsonl --dataset=expressions --direct=0.7
    python -m k2jax.train --config=experiments/sft/code_nano.py --workdir=runs/sft-code-nano
    python -m k2jax.rl --config=experiments/rl/code_nano.py --workdir=runs/rl-code-nano
"""

from k2jax.config import config_beside, task


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.init_from = "runs/sft-code-nano"
    config.data.chat_format = "compact"
    config.rl.tasks = {"code": task(dataset="expressions", options=("count=20000",), max_tokens=32, steps=5)}
    config.rl.rollout.update({"prompts": 32, "max_length": 160})
    config.train.steps = 24
    config.eval.every = 8
    return config
