"""What a row's tests are run by: its own commands, or what SWE-bench runs for rows that name none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import re
import shlex

from k2jax.errors import UserError

_TOUCHED = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_PYTHON_FILE = re.compile(r"[^\s:]+\.py")
_DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
_SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"
_START, _END = b">>>>> Start Test Output", b">>>>> End Test Output"


def default_command(repository: str, language: str, test_patch: str, names: Iterable[str]) -> str:
    """The command of a row in Python that names none.

    Args:
        repository: ``owner/name``: Django and SymPy have runners of their own, and run what the test patch changes.
        language: of the row; empty is Python.
        test_patch: of the row.
        names: of its tests; those of pytest begin with their files.

    Raises:
        UserError: the row is of another language, or names no file.
    """
    if language.lower() not in ("", "python", "py"):
        raise UserError("it has no test_cmd, which rows of other languages than Python need")
    touched = [path for path in _TOUCHED.findall(test_patch) if path.endswith(".py")]
    if repository == "django/django" and touched:
        labels = [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in touched]
        return f"{_DJANGO} {shlex.join(labels)}"
    if repository == "sympy/sympy" and touched:
        return f"{_SYMPY} {shlex.join(touched)}"
    if not (files := files_of_tests(names)):
        raise UserError("it has no test_cmd, and the names of its tests no files for pytest")
    return f"python -m pytest -rA {shlex.join(files)}"


def files_of_tests(names: Iterable[str]) -> list[str]:
    """The files of tests that are named as by pytest, ``path.py::name``."""
    files = (name.partition("::")[0] for name in names if "::" in name)
    return list(dict.fromkeys(file for file in files if _PYTHON_FILE.fullmatch(file) and not file.startswith("-")))


def script_of(commands: Sequence[str], secret: str) -> str:
    """A program of a shell that runs commands one after the other and marks what the last of them print.

    Args:
        commands: to build, to test, and to report; where the last is empty, the tests' own output is marked.
        secret: of the marks.
    """
    build, tests, report = commands
    begin, end = (f"printf '\\n%s\\n' {mark}" for mark in _marks(secret))
    body = [build, tests, begin, report] if report else [build, begin, tests]
    # What the commands set is for them alone: `exit` and `set -e` of a row must not keep the end from being marked.
    return "\n".join(['rm -f "$0"', "exec 2>&1", "(", *(part for part in body if part), ")", end, ""])


def marked_log(output: bytes, secret: str, marked: bool) -> bytes | None:
    """What a script has printed between its marks; None where they are not there, because it did not come to its end.

    Args:
        output: of ``script_of``.
        secret: of the marks.
        marked: whether of that only what stands between SWE-bench's own marks counts, if they are there.
    """
    begin, end = (f"\n{mark}\n".encode() for mark in _marks(secret))
    first, last = output.find(begin), output.rfind(end)
    if first < 0 or last < first:
        return None
    log = output[first + len(begin) : max(last, first + len(begin))]
    if marked and _START in log and _END in log:
        return log[log.find(_START) : log.rfind(_END)]
    return log


def _marks(secret: str) -> tuple[str, str]:
    return f"begin-{secret}", f"end-{secret}"
