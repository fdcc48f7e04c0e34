"""The command ``python -m k2jax.env.faithfulness``, which is ``k2jax.tasks.faithfulness.judge_training``."""

from k2jax.tasks.faithfulness.judge_training import command

if __name__ == "__main__":
    command()
