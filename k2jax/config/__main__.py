"""Prints the reference of all configuration keys: ``python -m k2jax.config > docs/config.md``."""

from k2jax.config.reference import reference_markdown

if __name__ == "__main__":
    print("# Configuration keys\n\nEvery key is overridden on the command line by `--config.KEY=VALUE`.\n")
    print(reference_markdown(), end="")
