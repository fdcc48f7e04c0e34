"""Which domains a set of tasks covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from k2jax.agents.task import Task


def coverage(tasks: Iterable[Task]) -> str:
    """A Markdown table: tasks, verifiers, environments and tools of every domain, and the sum."""
    domains: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        domains[task.domain].append(task)
    lines = ["| domain | tasks | verifiers | environments | tools |", "| --- | ---: | --- | --- | --- |"]
    for domain, members in sorted(domains.items()):
        kinds = ({t.verifier for t in members}, {t.environment for t in members}, {n for t in members for n in t.tools})
        cells = (", ".join(sorted(names)) or "-" for names in kinds)
        lines.append(f"| {_cell(domain)} | {len(members)} | {' | '.join(map(_cell, cells))} |")
    total = sum(map(len, domains.values()))
    return "\n".join([*lines, f"| all {len(domains)} | {total} | | | |", ""])


def _cell(text: str) -> str:
    """Text that cannot end its cell."""
    return " ".join(text.replace("|", "\\|").split())
