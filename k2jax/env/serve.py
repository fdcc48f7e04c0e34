"""The command ``python -m k2jax.env.serve``, which is ``k2jax.agents.environments.serve``."""

from k2jax.agents.environments.serve import command

if __name__ == "__main__":
    command()
