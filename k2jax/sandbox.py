"""The command ``python -m k2jax.sandbox``: what isolates on this machine, and the images of sandboxes."""

from __future__ import annotations

import argparse
import sys

from k2jax.agents.images.image_command import add_image
from k2jax.agents.sandbox.check import add_check
from k2jax.errors import UserError


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m k2jax.sandbox", description=__doc__.partition(": ")[2])
    add_commands(parser)
    arguments = parser.parse_args()
    try:
        return arguments.run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Adds all commands; without one, the help is printed."""
    commands = parser.add_subparsers(metavar="COMMAND")
    add_check(commands)
    add_image(commands)
    parser.set_defaults(run=lambda arguments: parser.print_help() or 0)


if __name__ == "__main__":
    if code := main():
        sys.exit(code)
