"""terminal_workers_nano.py with an engine in a process of its own, which generates while the trainer updates.

Reproduces: engines that take each version of the weights from the checkpoint engine's store and go on (Kimi K2,
section 3.3), at the scale of a laptop. Tasks, model, objective and rates are those of terminal_nano.py; no token is
trained on that weights of more than two versions before chose. See docs/asynchronous_rl.md.
Expected: the curve of terminal_nano.py within the spread of its seeds.

    python -m k2jax.rl --config=experiments/rl/terminal_separate_nano.py --workdir=runs/rl-terminal-separate
    python -m k2jax.rollout engine --follow=runs/rl-terminal-separate
"""

from k2jax.config import config_beside


def get_config():
    """The experiment; the second command adds an engine to a run, at any time."""
    config = config_beside(__file__, "terminal_workers_nano.py")
    config.rl.engines.placement = "separate"
    config.rl.max_staleness = 2
    return config
