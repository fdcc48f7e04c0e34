"""Says what a backend of sandboxes isolates on this machine, and attacks it: ``python -m k2jax.sandbox check``."""

import argparse
import sys

from k2jax.agents.sandbox.backends import BACKENDS
from k2jax.agents.sandbox.check import check

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m k2jax.sandbox", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("command", nargs="?", choices=["check"], help="the only command")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="bubblewrap", help="which (default: bubblewrap)")
    parser.add_argument("--no-attacks", action="store_true", help="only say what it isolates")
    arguments = parser.parse_args()
    if arguments.command is None:
        parser.print_help()
    elif not check(arguments.backend, attacks=not arguments.no_attacks):
        sys.exit(1)
