"""Linear equations with one unknown, as reasoning-gym draws them.

Expected: the oracle scores 1 and the null policy 0. It needs the extra env, and nothing from a network.

    python -m k2jax.evaluate equations --model=oracle --workdir=runs/equations-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    options = ("generators=simple_equations", "count=120", "seed=1")
    return suite(dataset="reasoning_gym", options=options, max_tokens=512)
