"""Prints what each backend of sandboxes isolates on this machine: ``python -m k2jax.sandbox check``."""

import argparse
import sys

from k2jax.sandbox.check import check

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m k2jax.sandbox", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("command", nargs="?", choices=["check"], default="check", help="the only command")
    parser.parse_args()
    report, works = check()
    print(report)
    if not works:
        sys.exit(1)
