"""What logs of Python's test runners say: pytest, unittest with Django's, and SymPy's own."""

from __future__ import annotations

from collections.abc import Iterator
import re

Verdicts = Iterator[tuple[str, str]]
"""Names of tests, and how they ended: ``passed``, ``failed``, ``skipped`` or ``xfailed``. The last one counts."""
_WORDS = {
    "PASSED": "passed",
    "XPASS": "passed",
    "FAILED": "failed",
    "ERROR": "failed",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
}
_WORD = re.compile(rf"\s({'|'.join(_WORDS)})(?=\s|$)")
_WORKER = re.compile(r"\[gw\d{1,6}\] ?(?:\[ {0,3}\d{1,3}%\])? ?")
_ENDINGS = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "failed",
    "expected failure": "xfailed",
    "unexpected success": "failed",
}
_SYMPY = {"ok": "passed", "F": "failed", "E": "failed", "K": "failed", "T": "failed", "s": "skipped", "f": "xfailed"}
_SYMPY_HEADER = re.compile(r"_{3,} (\S+) _{3,}")


def pytest_log(lines: Iterator[str]) -> Verdicts:
    """The lines of ``-rA`` and of ``-v``, of this process and of pytest-xdist's.

    Names may hold blanks. Published lists have parameters of some repositories in another form, which is given too.
    """
    for line in lines:
        if line.startswith("[gw"):
            line = line[_WORKER.match(line).end() :] if _WORKER.match(line) else line
        word, _, rest = line.partition(" ")
        if word in _WORDS:
            name = rest.strip() if word in ("PASSED", "XPASS") else rest.strip().split(" - ")[0]
            if word == "SKIPPED" and name.startswith("["):
                continue
        elif found := _WORD.search(line):
            word, name = found[1], line[: found.start()].strip()
        else:
            continue
        if name:
            for form in _forms(name):
                yield form, _WORDS[word]


def _forms(name: str) -> Iterator[str]:
    """A node id as pytest writes it, with the parameter's last folder alone, and with the numbers of mouse buttons."""
    yield name
    head, bracket, parameter = name.partition("[")
    if bracket and parameter.startswith("/") and not parameter.startswith("//") and "*" not in parameter:
        yield f"{head}[/{parameter.rpartition('/')[2]}"
    if "MouseButton." in name:
        yield name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")


def unittest_log(lines: Iterator[str]) -> Verdicts:
    """The lines of ``-v``: ``test_x (module.Class) ... ok``; what a test prints may stand before its verdict.

    A test with a docstring has two lines, and both are names of it.
    """
    open_names: list[str] = []
    before = ""
    for raw in lines:
        line = raw.strip()
        name, dots, ending = line.rpartition(" ... ")
        kind = _ending(ending)
        if dots and kind:
            names = [name.partition(" ... ")[0]]
            yield from ((each, kind) for each in (*names, before) if each)
            open_names = []
        elif dots or line.endswith(" ..."):
            open_names = [line.partition(" ...")[0], before]
        elif (kind := _ending(line)) and open_names:
            yield from ((each, kind) for each in open_names if each)
            open_names = []
        elif line.startswith(("FAIL: ", "ERROR: ")):
            yield line.partition(": ")[2], "failed"
        before = line if line.startswith("test") and line.endswith(")") and not dots else ""


def _ending(text: str) -> str:
    if text.lower() == "ok":
        return "passed"
    return "skipped" if text.startswith("skipped") else _ENDINGS.get(text, "")


def sympy_log(lines: Iterator[str]) -> Verdicts:
    """The lines of ``bin/test --verbose``: ``test_x ok``; a file's last one has ``[OK]`` or ``[FAIL]`` behind it."""
    for raw in lines:
        line = raw.strip()
        if (header := _SYMPY_HEADER.fullmatch(line)) and ".py:" in header[1]:
            yield header[1], "failed"
        elif line.startswith("test_"):
            words = line.removesuffix("[OK]").removesuffix("[FAIL]").split()
            if len(words) > 1 and words[-1] in _SYMPY:
                yield words[0], _SYMPY[words[-1]]
