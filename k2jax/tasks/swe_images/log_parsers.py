"""Parsers of test runners' logs, by the names of published data sets, and how the tests of a row have ended.

Logs are written by code that nobody trusts: they are read line by line, lines are cut, and only the tests that a row
lists are kept. Every parser takes time in proportion to a log's length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
import re

from k2jax.errors import UserError, abbreviate
from k2jax.tasks.swe_images import compiled_logs, javascript_logs, python_logs
from k2jax.tasks.swe_images.python_logs import Verdicts

LARGEST_LOG = 32 << 20
"""Bytes of a log that are read."""
LONGEST_LINE = 4096
"""Bytes of a line that are read."""
MOST_LINES = 1_000_000
"""Lines of a log that are read."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?|[@-Z\\^_])|[\x00-\x08\x0b-\x1f\x7f]")
_SECONDS = re.compile(r" [(\[]? ?\d{1,9}(?:\.\d{1,9})? ?m?s ?[)\]]?$")
_TAIL = 32
_TIMED = ("jest", "vitest", "node", "mocha", "tap", "phpunit", "automake", "gradle")
"""Parsers of logs with a time behind names; names of the others may end like one."""
_KINDS: dict[str, Callable[[Iterator[str]], Verdicts]] = {
    "pytest": python_logs.pytest_log,
    "unittest": python_logs.unittest_log,
    "sympy": python_logs.sympy_log,
    "tap": javascript_logs.tap_log,
    "jest": javascript_logs.sign_log,
    "vitest": javascript_logs.sign_log,
    "node": javascript_logs.sign_log,
    "mocha": javascript_logs.mocha_log,
    "go": compiled_logs.go_log,
    "cargo": compiled_logs.cargo_log,
    "maven": compiled_logs.maven_log,
    "gradle": compiled_logs.gradle_log,
    "googletest": compiled_logs.google_log,
    "ctest": compiled_logs.ctest_log,
    "automake": compiled_logs.colon_log,
    "phpunit": compiled_logs.phpunit_log,
}
_PUBLISHED = {
    "pytest": "pytest pytest_v2 pytest_options pytest_nebo seaborn matplotlib astroid flask marshmallow pvlib pyvista "
    "sqlfluff xarray pydicom requests pylint astropy scikit sphinx pydantic dvc",
    "unittest": "django",
    "tap": "tap js_3",
    "jest": "jest jest_json react_pdf",
    "vitest": "vitest",
    "mocha": "js js_2 js_4 npx mocha",
    "go": "gotest",
    "cargo": "cargo",
    "maven": "maven java_mvn java_mvn_v2",
    "gradle": "gradle_custom",
    "googletest": "googletest",
    "automake": "jq redis micropython_test ant",
    "phpunit": "phpunit",
    "sympy": "sympy",
}
_NAMES = {name: kind for kind, names in _PUBLISHED.items() for name in names.split()} | {kind: kind for kind in _KINDS}
_COMMANDS = {
    "runtests.py": "unittest",
    "unittest": "unittest",
    "bin/test": "sympy",
    "pytest": "pytest",
    "vitest": "vitest",
    "jest": "jest",
    "mocha": "mocha",
    "test-reporter=tap": "tap",
    "node --test": "node",
    "go test": "go",
    "cargo": "cargo",
    "mvn": "maven",
    "gradle": "gradle",
    "gradlew": "gradle",
    "ctest": "ctest",
    "phpunit": "phpunit",
    "prove": "tap",
}
_LANGUAGES = {"python": "pytest", "py": "pytest", "go": "go", "golang": "go", "rust": "cargo", "php": "phpunit"}


def parser_named(name: str) -> str:
    """The parser that a row names as data sets do, such as ``pytest`` or ``parse_log_gotest``; empty for none known."""
    return _NAMES.get(name.strip().removeprefix("parse_").removeprefix("log_"), "")


def parser_for(command: str, language: str) -> str:
    """The parser of a row that names none, by what its command starts, or else its language.

    Raises:
        UserError: neither is known.
    """
    for word, kind in _COMMANDS.items():
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", command):
            return kind
    if kind := _LANGUAGES.get(language.lower()):
        return kind
    known = ", ".join(sorted(_KINDS))
    raise UserError(f"its log's form is unknown ({abbreviate(language)}); name it by log_parser: {known}")


def read_log(kind: str, log: bytes, wanted: Collection[str]) -> dict[str, str]:
    """How listed tests have ended: ``passed``, ``failed``, ``skipped`` or ``xfailed``; others are not in it.

    Terminal escapes, and a time behind a name, make no difference. Where a name ends within a parameter, as lists of
    SWE-bench have them, the worst of the tests counts that begin with it.

    Args:
        kind: what ``parser_named`` or ``parser_for`` has returned.
        log: what the tests have written.
        wanted: names of tests.
    """
    names: dict[str, list[str]] = defaultdict(list)
    cut: dict[str, list[str]] = defaultdict(list)
    for name in wanted:
        (cut if name.count("[") > name.count("]") else names)[_plain(kind, name)].append(name)
    ended: dict[str, str] = {}
    for name, verdict in _KINDS[kind](_lines(log)):
        plain = _plain(kind, name)
        for each in names.get(plain, ()):
            ended[each] = verdict
        for each in cut.get(plain.partition(" ")[0], ()):
            ended[each] = verdict if ended.get(each) != "failed" else "failed"
    return ended


def _plain(kind: str, name: str) -> str:
    """A test's name without escapes and without a time behind it."""
    name = _ESCAPE.sub("", name).strip()
    tail = name[-_TAIL:] if kind in _TIMED else ""
    found = _SECONDS.search(tail)
    return name[: len(name) - len(tail) + found.start()].rstrip() if found else name


def _lines(log: bytes) -> Iterator[str]:
    begin, size = 0, min(len(log), LARGEST_LOG)
    for _ in range(MOST_LINES):
        if begin >= size:
            return
        end = log.find(b"\n", begin, size)
        end = size if end < 0 else end
        line = log[begin : min(end, begin + LONGEST_LINE)].rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        yield line if line.isprintable() else _ESCAPE.sub("", line).rstrip()
        begin = end + 1
