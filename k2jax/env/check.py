"""The command ``python -m k2jax.env.check``, which is ``k2jax.tasks.check``."""

from k2jax.tasks.check import command

if __name__ == "__main__":
    command()
