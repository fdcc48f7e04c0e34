"""The command ``python -m k2jax.launch``, which is ``k2jax.pods.launch``."""

from k2jax.pods.launch import command

if __name__ == "__main__":
    command()
