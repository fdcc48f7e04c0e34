"""Held-out character problems: the suite that a laptop's model is evaluated on, drawn by a seed.

Expected: the oracle scores 1 and the null policy 0. The models of experiments/sft/nano.py and experiments/rl/nano.py
score as their files say.

    python -m k2jax.evaluate characters --model=oracle --workdir=runs/characters-oracle
    python -m k2jax.evaluate characters --model=runs/sft-nano --workdir=runs/characters-sft
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="characters", options=("kinds=add3+sum6+sort6", "count=256"), max_tokens=64)
