"""terminal_nano.py with the sampler that does not wait: episodes in two processes, while the engine never stands still.

Reproduces: the rollouts of Kimi K2 (section 3.3) and Kimi K2.5 (appendix D), in which many more episodes are under way
than the engine has slots and none waits for another's tool, at the scale of a laptop. Tasks, model, objective and rates
are those of terminal_nano.py; see docs/asynchronous_rl.md.
Expected: the curve of terminal_nano.py within the spread of its seeds; iterations that end when 32 groups are complete.

    python -m k2jax.rl --config=experiments/rl/terminal_workers_nano.py --workdir=runs/rl-terminal-workers
"""

from k2jax.config import config_beside


def get_config():
    """The experiment."""
    config = config_beside(__file__, "terminal_nano.py")
    config.rl.rollout.update({"sampler": "workers", "workers": 2})
    return config
