"""HellaSwag (Zellers et al. 2019) by log-likelihood of the endings; normalised is by their length, as is usual.

Data: hellaswag_val.jsonl as published, below --data. Expected: the null policy scores 1/4.

    python -m k2jax.evaluate hellaswag --model=runs/pretrain --data=/data/benchmarks --workdir=runs/hellaswag
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="multiple_choice",
        options=("path={data}/hellaswag_val.jsonl", "style=text"),
        method="choices",
        template="text",
    )
