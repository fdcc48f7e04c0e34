"""MMLU-Pro (Wang et al. 2024): up to ten choices, answered with reasoning and a letter on the last line.

Data: test.parquet of the data set, as mmlu_pro/test.parquet below --data. Expected: the null policy scores 0.

    python -m k2jax.evaluate mmlu_pro --model=runs/sft --data=/data/benchmarks --workdir=runs/mmlu-pro
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite("k2", dataset="multiple_choice", options=("path={data}/mmlu_pro/test.parquet",))
