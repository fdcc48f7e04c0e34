"""The command ``python -m k2jax.env.check``, which is ``k2jax.agents.check``."""

from k2jax.agents.check import command

if __name__ == "__main__":
    command()
