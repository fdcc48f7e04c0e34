"""What logs of JavaScript's test runners say: TAP, and the lines with signs of Jest, Vitest, Mocha and Node.

A test is named by its own title, and by those of the suites around it, with `` > `` between them.
"""

from __future__ import annotations

from collections.abc import Iterator
import re

from k2jax.tasks.swe_images.python_logs import Verdicts

_SIGNS = {
    **dict.fromkeys("✓✔√", "passed"),
    **dict.fromkeys("✕✗✖✘\N{MULTIPLICATION SIGN}", "failed"),
    **dict.fromkeys("○↓◌﹣□✎-", "skipped"),
}
_NUMBERED = re.compile(r"\d{1,6}\) ")
_TAP = re.compile(r"(ok|not ok) \d{1,9}(?: (.*))?")
_FILE = re.compile(r"(PASS|FAIL) +(\S.*)")
_JSON = re.compile(r"\[(PASSED|FAILED)\] (.+)")


def tap_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``ok 1 - title`` and ``not ok``; those of suites stand below their tests, which are indented.

    Published lists name tests with the hyphen, and with ``# SKIP`` where there is one.
    """
    for raw in lines:
        line = raw.strip().removesuffix("{").rstrip()
        if not (match := _TAP.fullmatch(line)):
            continue
        title, _, directive = (match[2] or "").partition(" # ")
        kind = "passed" if match[1] == "ok" else "failed"
        if directive.lower().startswith(("skip", "todo")):
            kind = "skipped"
        for name in {title.strip(), title.strip().removeprefix("- "), (match[2] or "").strip()}:
            yield name, kind


def sign_log(lines: Iterator[str]) -> Verdicts:
    """Lines with a sign before a title, such as ``✓ adds (3 ms)``, of Jest, Vitest and Node; files by PASS and FAIL."""
    return _signs(lines, _SIGNS)


def mocha_log(lines: Iterator[str]) -> Verdicts:
    """The same, and ``1) title`` of a test that failed."""
    return _signs(lines, _SIGNS, numbered=True)


def _signs(lines: Iterator[str], signs: dict[str, str], numbered: bool = False) -> Verdicts:
    suites: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        while suites and suites[-1][0] >= depth:
            suites.pop()
        if file := _FILE.fullmatch(text):
            yield file[2].strip(), "passed" if file[1] == "PASS" else "failed"
            suites = []
        elif result := _JSON.fullmatch(text):
            yield result[2], result[1].lower()
        elif (kind := signs.get(text[0])) and text[1:2] == " ":
            title, _, directive = text[2:].strip().partition(" # ")
            if directive.upper().startswith(("SKIP", "TODO")):
                kind = "skipped"
            yield from _named(
                title.removeprefix("skipped ").removeprefix("todo ").removesuffix(" [skipped]"), kind, suites
            )
        elif numbered and (number := _NUMBERED.match(text)):
            yield from _named(text[number.end() :].removesuffix(":"), "failed", suites)
        elif len(suites) < 100:
            suites.append((depth, text.removeprefix("▶ ")))


def _named(title: str, kind: str, suites: list[tuple[int, str]]) -> Verdicts:
    yield title, kind
    if suites:
        yield " > ".join([*(suite for _, suite in suites), title]), kind
