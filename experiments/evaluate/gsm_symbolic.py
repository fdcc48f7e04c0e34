"""Word problems of GSM-Symbolic as reasoning-gym makes them: templates of GSM8K with other names and numbers.

Expected: the oracle scores 1 and the null policy 0. It needs the extra env, and nothing from a network.

    python -m k2jax.evaluate gsm_symbolic --model=oracle --workdir=runs/gsm-symbolic-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    options = ("generators=gsm_symbolic", "count=120", "seed=1")
    return suite(dataset="reasoning_gym", options=options, max_tokens=512)
