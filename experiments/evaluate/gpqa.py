"""GPQA-Diamond (Rein et al. 2023): Avg@8 in the settings of Kimi K2.5 for reasoning (appendix E.3).

Data: gpqa_diamond.csv of the published archive, below --data. Expected: the null policy scores 0.

    python -m k2jax.evaluate gpqa --model=runs/rl --data=/data/benchmarks --workdir=runs/gpqa
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        "k2.5-reasoning",
        dataset="multiple_choice",
        options=("path={data}/gpqa_diamond.csv",),
        samples=8,
        metrics=("majority",),
    )
