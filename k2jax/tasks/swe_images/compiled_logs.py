"""What logs of other languages' test runners say: Go, Rust, Java, C and C++, PHP."""

from __future__ import annotations

from collections.abc import Iterator
import json
import re

from k2jax.tasks.swe_images.python_logs import Verdicts

_GO = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_GO_LINE = re.compile(r"--- (PASS|FAIL|SKIP): (.+) \([\d.]{1,20}s\)")
_CARGO = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
_SUREFIRE = re.compile(
    r"Tests run: (\d{1,9}), Failures: (\d{1,9}), Errors: (\d{1,9}), Skipped: (\d{1,9}).* --? in (\S+)"
)
_SUREFIRE_TEST = re.compile(r"([\w$]+)\(([\w$.]+)\)")
_SINGLE = re.compile(r"-Dtest=(\S+)")
_GOOGLE = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+)(?:,? .*)?")
_CTEST = re.compile(r"\d{1,6}/\d{1,6} Test +#\d{1,6}: (\S+) \.*(.*)")
_COLON = {
    **dict.fromkeys(("PASS", "pass", "ok"), "passed"),
    **dict.fromkeys(("FAIL", "ERROR", "XPASS", "err"), "failed"),
    **dict.fromkeys(("SKIP", "skip", "ignore"), "skipped"),
    "XFAIL": "xfailed",
}
_COLON_LINE = re.compile(rf"\[?({'|'.join(_COLON)})(?:\]?:|\]| {{2}}) *(\S.*)")
_ANT = re.compile(r"\[junit\] +\[(PASS|FAIL|ERR)\] +(\S.*)")
_SUITE = re.compile(r"(\w.*) \([\w\\]+\)")
_PHP = {"✔": "passed", "✘": "failed", "↩": "skipped", "∅": "skipped"}


def go_log(lines: Iterator[str]) -> Verdicts:
    """Lines of ``go test -v`` and objects of ``go test -json``: tests, also with their package before them.

    Subtests are named by their whole path, packages by theirs.
    """
    for raw in lines:
        line = raw.strip()
        if line.startswith("{"):
            yield from _go_event(line)
        elif match := _GO_LINE.fullmatch(line):
            yield match[2], _GO[match[1].lower()]
        elif line.startswith(("ok  \t", "FAIL\t")):
            yield line.split("\t")[1].partition(" ")[0], "passed" if line.startswith("ok") else "failed"


def _go_event(line: str) -> Verdicts:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    kind = _GO.get(str(event.get("Action"))) if isinstance(event, dict) else None
    if kind and isinstance(package := event.get("Package"), str):
        test = event.get("Test")
        names = [test, f"{package}/{test}"] if isinstance(test, str) else [package]
        yield from ((name, kind) for name in names)


def cargo_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``test module::name ... ok``; what a test prints may stand before its verdict."""
    open_name = ""
    for raw in lines:
        line = raw.strip()
        if line.startswith("test ") and " ... " in line:
            name, _, ending = line.removeprefix("test ").partition(" ... ")
            name = name.removesuffix(" - should panic")
            kind, open_name = _CARGO.get(ending.partition(",")[0]), name
            if kind:
                yield name, kind
                open_name = ""
        elif open_name and line in _CARGO:
            yield open_name, _CARGO[line]
            open_name = ""


def maven_log(lines: Iterator[str]) -> Verdicts:
    """Surefire's lines of classes and of tests that failed, and one verdict for each traced ``mvn -Dtest=NAME``.

    A test that passed has no line of its own: lists of Maven's tests hold classes, or what ``-Dtest`` names.
    """
    asked: list[str] = []
    for raw in lines:
        line = raw.strip()
        for level in ("[INFO] ", "[ERROR] ", "[WARNING] "):
            line = line.removeprefix(level)
        if match := _SUREFIRE.fullmatch(line):
            run, failures, errors, skipped = (int(number) for number in match.groups()[:4])
            kind = "skipped" if run == skipped else "passed"
            yield match[5], "failed" if failures or errors else kind
        elif line.endswith(("<<< FAILURE!", "<<< ERROR!")):
            word = line.partition(" ")[0]
            old = _SUREFIRE_TEST.fullmatch(word)
            yield f"{old[2]}.{old[1]}" if old else word, "failed"
        elif line.endswith(("BUILD SUCCESS", "BUILD FAILURE")) and asked:
            yield asked.pop(0), "passed" if line.endswith("SUCCESS") else "failed"
        elif (single := _SINGLE.search(line)) and len(asked) < 10_000:
            asked.append(single[1])


def gradle_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``Class > test PASSED`` of a test logger that shows every test."""
    for raw in lines:
        name, _, word = raw.strip().rpartition(" ")
        if " > " in name and word in ("PASSED", "FAILED", "SKIPPED"):
            yield name, word.lower()


def google_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``[       OK ] Suite.Test (0 ms)`` of GoogleTest."""
    for raw in lines:
        if match := _GOOGLE.fullmatch(raw.strip()):
            yield match[2].rstrip(","), {"OK": "passed"}.get(match[1], match[1].lower())


def ctest_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``1/3 Test #1: name ....   Passed    0.01 sec`` of CTest."""
    for raw in lines:
        if match := _CTEST.fullmatch(raw.strip()):
            ending = match[2].lstrip(" .*")
            kind = "skipped" if ending.startswith(("Skipped", "Not Run (Disabled)")) else "failed"
            yield match[1], "passed" if ending.startswith("Passed") else kind


def colon_log(lines: Iterator[str]) -> Verdicts:
    """Lines ``PASS: name`` of Automake and jq, ``[ok]: name (1 ms)`` of Redis, ``pass  name`` of MicroPython, Ant's."""
    for raw in lines:
        line = raw.strip()
        if ant := _ANT.fullmatch(line):
            yield ant[2], "passed" if ant[1] == "PASS" else "failed"
        elif match := _COLON_LINE.fullmatch(line):
            yield match[2], _COLON[match[1]]


def phpunit_log(lines: Iterator[str]) -> Verdicts:
    """Lines of ``phpunit --testdox``: a suite, and below it tests with signs; named ``Suite > test``."""
    suite = ""
    for raw in lines:
        line = raw.strip()
        if match := _SUITE.fullmatch(line):
            suite = match[1]
        elif (kind := _PHP.get(line[:1])) and suite:
            yield f"{suite} > {line[1:].strip()}", kind
