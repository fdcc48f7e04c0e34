"""MBPP (Austin et al. 2021) from a local file: 500 test problems, whose assertions run in sandboxes.

Data: mbpp.jsonl below --data, as it is published. Expected: the oracle scores 1 and the null policy 0.

    python -m k2jax.evaluate mbpp --model=runs/sft --data=/data/benchmarks --workdir=runs/mbpp
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="mbpp", options=("path={data}/mbpp.jsonl",), split="test", max_tokens=1024)
