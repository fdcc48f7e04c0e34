"""Processor seconds of the tests beside the budget of their folder: ``python -m tests.budget junit.xml``.

With ``--no-budgets`` the seconds alone, as of slow tests.

Each test's report carries the user and system seconds of its process, of all its threads, and of the child processes
that it has waited for; the fixtures of a file count for the test that needs them first. Nothing fails by its time:
what is over its budget is said, and so are the imports of the collection, which belong to no folder, by their absence.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
import resource
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree

import pytest

BUDGETS = Path(__file__).with_name("budgets.toml")
PROPERTY = "processor_seconds"
TOP_LEVEL = "top_level"
_BEGAN = pytest.StashKey[float]()


def spent() -> float:
    """User and system seconds of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Recorder:
    """Plugin that adds the processor seconds of each test to its last report, which junit keeps."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        item.stash[_BEGAN] = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append((PROPERTY, f"{spent() - item.stash[_BEGAN]:.3f}"))
        return (yield)


def folder_of(module: list[str]) -> str:
    """The folder of a module ``tests.FOLDER.[...].FILE`` or ``tests.FILE``; agents have a budget for each part."""
    folders = module[1:-1]
    return ".".join(folders[: 2 if folders[0] == "agents" else 1]) if folders else TOP_LEVEL


def by_folder(report: Path) -> Counter[str]:
    """Processor seconds of each folder of tests, from a file of ``--junitxml``."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        folder = folder_of(case.get("classname", "").split("."))
        for entry in case.iter("property"):
            if entry.get("name") == PROPERTY:
                seconds[folder] += float(entry.get("value"))
    return seconds


def table(seconds: Counter[str], budgets: dict[str, float]) -> Iterator[str]:
    """Lines of folder, processor seconds and budget, the longest first, and a line of their sums."""
    rows = [*seconds.most_common(), ("sum", sum(seconds.values()))]
    if not budgets:
        return (yield from (f"{folder:<16}{used:>14.1f}" for folder, used in rows))
    budgets = budgets | {"sum": sum(budgets.values())}
    yield f"{'folder':<16}{'processor [s]':>14}{'budget [s]':>12}"
    for folder, used in rows:
        budget = budgets.get(folder)
        verdict = "no budget" if budget is None else f"OVER by {used - budget:.0f} s" if used > budget else ""
        yield f"{folder:<16}{used:>14.1f}{'' if budget is None else budget:>12}  {verdict}".rstrip()


if __name__ == "__main__":
    known = {} if "--no-budgets" in sys.argv else tomllib.loads(BUDGETS.read_text())
    print(*table(by_folder(Path(sys.argv[1])), known), sep="\n")
