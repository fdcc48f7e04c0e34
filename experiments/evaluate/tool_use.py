"""Questions that tools answer: held-out problems of the calculator and the notes, with the episode's own tools.

Expected: the oracle scores 1 and the null policy 0. With a checkpoint, --max_length says how long episodes may become.

    python -m k2jax.evaluate tool_use --model=oracle --workdir=runs/tool-use-oracle
"""

from k2jax.evaluate.suite import suite


def get_config():
    """The suite."""
    return suite(dataset="tool_use", options=("count=128",), max_tokens=128)
