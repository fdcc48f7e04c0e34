"""GSM8K (Cobbe et al. 2021): school problems with a final answer in a box.

Data: test.jsonl as published, as gsm8k/test.jsonl below --data. Expected: the oracle scores 1 and the null policy 0.

    python -m k2jax.evaluate gsm8k --model=runs/sft --data=/data/benchmarks --workdir=runs/gsm8k
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="math", options=("path={data}/gsm8k/test.jsonl",), max_tokens=1024)
