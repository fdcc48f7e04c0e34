"""The command ``python -m k2jax.sandbox check``, which is ``k2jax.agents.sandbox.check``."""

from k2jax.agents.sandbox.check import command

if __name__ == "__main__":
    command()
