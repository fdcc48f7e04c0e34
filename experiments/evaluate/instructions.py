"""Requests with constraints of IFEval's kind on the form of an answer, drawn by a seed; right where all of them hold.

Expected: the oracle scores 1 and the null policy 0.

    python -m k2jax.evaluate instructions --model=oracle --workdir=runs/instructions-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="instructions", options=("constraints=2", "count=128", "seed=1"), max_tokens=256)
