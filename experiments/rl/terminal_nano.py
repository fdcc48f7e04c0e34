"""A Kimi K2 of a million parameters learns to look before it acts in a terminal, on a laptop's CPU.

Reproduces: the structure of Kimi K2's reinforcement learning in environments of several turns (Kimi K2, section 3.2),
not its scale: every episode has a sandbox of its own, in which the model runs commands of a shell and sees what they
print; the reward is that of a test, run in a fresh sandbox, of the file that is left. Model, objective and rates are
those of nano.py.
Expected: 99.6 % of held-out tasks are solved greedily, after 33.4 % (500 tasks, one seed); the study
experiments/reproduce/terminal.py has the same runs, and docs/reproductions.md their figures.

    python -m k2jax.env.demonstrate --to=runs/terminal.jsonl --dataset=commands --direct=0.7
    python -m k2jax.train --config=experiments/sft/terminal_nano.py --workdir=runs/sft-terminal-nano
    python -m k2jax.rl --config=experiments/rl/terminal_nano.py --workdir=runs/rl-terminal-nano
"""

from k2jax.config import config_beside, task


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.init_from = "runs/sft-terminal-nano"
    config.data.chat_format = "compact"
    config.rl.tasks = {"terminal": task(dataset="commands", options=("count=20000",), max_tokens=32, steps=4)}
    config.rl.rollout.update({"prompts": 32, "max_length": 160})
    config.train.steps = 24
    config.eval.every = 8
    return config
