"""Which of four bodies is a function's own, by log-likelihood: HumanEval's functions in HellaSwag's form.

Data: python -m k2jax.env.packaged_choices --folder=data/packaged. Expected: the null policy scores about 1/4.

    python -m k2jax.evaluate solutions --model=smollm2 --workdir=runs/solutions
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(
        dataset="multiple_choice",
        options=("path={data}/packaged/solutions.jsonl", "style=text"),
        method="choices",
        template="text",
    )
