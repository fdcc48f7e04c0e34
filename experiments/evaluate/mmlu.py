"""MMLU (Hendrycks et al. 2021) by log-likelihood of the letters, with five examples, as base models are asked.

Data: the folders test and dev of the published archive, below --data/mmlu. Expected: the null policy scores 1/4.

    python -m k2jax.evaluate mmlu --model=runs/pretrain --data=/data/benchmarks --workdir=runs/mmlu
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="multiple_choice",
        options=("path={data}/mmlu/test", "examples={data}/mmlu/dev", "shots=5", "style=letter"),
        method="choices",
        template="text",
    )
