"""AIME 2025: Avg@64, majority vote and the settings of Kimi K2.5 for reasoning (appendix E.3).

Data: aime2025.jsonl with the fields problem and answer, below --data. Expected: the oracle scores 1, the null policy 0.

    python -m k2jax.evaluate aime --model=runs/rl --data=/data/benchmarks --workdir=runs/aime
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        "k2.5-reasoning",
        dataset="math",
        options=("path={data}/aime2025.jsonl", "question=problem"),
        samples=64,
        metrics=("pass", "majority"),
    )
