"""The command ``python -m k2jax.env.demonstrate``, which is ``k2jax.tasks.demonstrate``."""

from k2jax.tasks.demonstrate import command

if __name__ == "__main__":
    command()
