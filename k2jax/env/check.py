"""The command ``python -m k2jax.env.check``, which is ``k2jax.tasks.oracle_check``."""

from k2jax.tasks.oracle_check import command

if __name__ == "__main__":
    command()
