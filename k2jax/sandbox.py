"""The command ``python -m k2jax.sandbox check``, which is ``k2jax.agents.sandbox.command``."""

from k2jax.agents.sandbox.command import command

if __name__ == "__main__":
    command()
