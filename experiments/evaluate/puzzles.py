"""Puzzles of reasoning-gym with four answers, in MMLU-Pro's form: reasoning, and a letter on the last line.

Data: python -m k2jax.env.packaged_choices --folder=data/packaged. Expected: the null policy scores 0.

    python -m k2jax.evaluate puzzles --model=smollm2 --workdir=runs/puzzles
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="multiple_choice", options=("path={data}/packaged/puzzles.jsonl",), max_tokens=256)
