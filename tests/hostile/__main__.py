"""The command ``python -m tests.hostile [--backend=bwrap,nsjail] [--only=WORDS] [--list]``.

It prints a table, and its exit code is 1 if an attack has broken a limit.
"""

import argparse
from collections.abc import Sequence
import sys

from tests.hostile.attack import BACKENDS, Attack
from tests.hostile.catalog import ATTACKS
from tests.hostile.runner import MEGA, Result, run

_WIDTHS = "{:<62.62} {:<7} {:>9} {:>8} {:>8} {:>4}  {}"


def main(words: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--backend", default=",".join(BACKENDS), help="backends, separated by commas")
    parser.add_argument("--only", default="", help="attacks whose label has one of these texts, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the attacks and what is right, and make none")
    chosen = parser.parse_args(words)
    backends = chosen.backend.split(",")
    if unknown := set(backends) - BACKENDS.keys():
        parser.error(f"no backend {', '.join(sorted(unknown))}; there are {', '.join(BACKENDS)}")
    attacks = selected(chosen.only)
    if not attacks:
        parser.error(f"no attack whose label has one of {chosen.only!r}")
    if chosen.list:
        print(*(f"{attack.label}: {attack.right}" for attack in attacks), sep="\n")
        return 0
    print(_WIDTHS.format("attack", "backend", "memory MB", "stall s", "control", "5xx", "outcome"))
    results = []
    for result in run(attacks, backends):
        results.append(result)
        print(line(result), flush=True)
    print(*summary(results), sep="\n")
    return int(any(result.problem for result in results))


def selected(only: str) -> list[Attack]:
    """The attacks whose label has one of some texts, separated by commas; all for none."""
    return [attack for attack in ATTACKS if any(text in attack.label for text in only.split(","))]


def line(result: Result) -> str:
    """A line of the table."""
    figures = f"{result.growth / MEGA:.0f}", f"{result.stall:.2f}", f"{result.control:.2f}", result.errors_of_servers
    return _WIDTHS.format(result.attack.label, result.backend or "-", *figures, result.problem or "right")


def summary(results: Sequence[Result]) -> list[str]:
    """The worst figures of each backend, and what was wrong."""
    lines = ["", _WIDTHS.format("worst of all", "backend", "memory MB", "stall s", "control", "5xx", "attacks, wrong")]
    for backend in sorted({result.backend for result in results}):
        own = [result for result in results if result.backend == backend]
        late = max(own, key=lambda result: result.stall - result.control)
        figures = f"{max(result.growth for result in own) / MEGA:.0f}", f"{late.stall:.2f}", f"{late.control:.2f}"
        wrong = sum(bool(result.problem) for result in own)
        errors = sum(result.errors_of_servers for result in own)
        lines.append(_WIDTHS.format("", backend or "-", *figures, errors, f"{len(own)}, {wrong}"))
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
