"""The suite puzzles by log-likelihood of the answers themselves, which are not shown.

Data: python -m k2jax.env.packaged_choices --folder=data/packaged. Expected: the null policy scores about 1/4.

    python -m k2jax.evaluate puzzles_ending --model=smollm2 --workdir=runs/puzzles-ending
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="multiple_choice",
        options=("path={data}/packaged/puzzles.jsonl", "style=text"),
        method="choices",
        template="text",
    )
