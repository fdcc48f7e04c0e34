"""The suite solutions by log-likelihood of the letters of bodies that are shown.

Data: python -m k2jax.env.packaged_choices --folder=data/packaged. Expected: the null policy scores about 1/4.

    python -m k2jax.evaluate solutions_letter --model=smollm2 --workdir=runs/solutions-letter
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="multiple_choice",
        options=("path={data}/packaged/solutions.jsonl", "style=letter"),
        method="choices",
        template="text",
    )
