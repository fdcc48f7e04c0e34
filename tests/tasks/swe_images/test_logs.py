"""Logs of test runners: what the tools themselves have written, what others document, and logs that are hostile."""

import asyncio
from pathlib import Path
import re
import time
import tracemalloc

import pytest

from k2jax.agents.sandbox import ExecResult
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.tasks.swe_images import log_parsers
from k2jax.tasks.swe_images.log_parsers import LARGEST_LOG, parser_for, parser_named, read_log
from k2jax.tasks.swe_images.verifier import run_tests

LOGS = Path(__file__).with_name("logs")
OUTER = ("passes", "fails", "is skipped", "is to do", "passes in it")
JAVASCRIPT = dict(zip(OUTER, ("passed", "failed", "skipped", "skipped", "passed"), strict=True))
PYTEST = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_expected": "xfailed",
    "test_unexpected": "passed",
    "test_error": "failed",
    "TestIn::test_method": "passed",
    "test_parameter[a b]": "passed",
    "test_parameter[a": "passed",
    "test_parameter[x": "passed",
    "test_parameter[/tmp/c]": "passed",
    "test_parameter[/c]": "passed",
    "test_nowhere": None,
}
TEARDOWN = {"test_teardown": "failed", "test_skipped": None}  # the summary has no name of a skipped test
UNITTEST = {
    "test_passes (test_u.T.test_passes)": "passed",
    "test_fails (test_u.T.test_fails)": "failed",
    "test_errors (test_u.T.test_errors)": "failed",
    "test_prints (test_u.T.test_prints)": "passed",
    "test_described (test_u.T.test_described)": "passed",
    "It is described.": "passed",
    "test_skipped (test_u.T.test_skipped)": "skipped",
    "test_expected (test_u.T.test_expected)": "xfailed",
    "test_unexpected (test_u.T.test_unexpected)": "failed",
    "test_sub (test_u.T.test_sub)": None,
    "test_sub (test_u.T.test_sub) (i=1)": "failed",
}
GO = {
    "TestPasses": "passed",
    "TestFails": "failed",
    "TestSkips": "skipped",
    "TestAll": "failed",
    "TestAll/one_word": "passed",
    "TestAll/two": "failed",
    "TestBelow": "passed",
    "example.com/words": "failed",
    "example.com/words/sub": "passed",
}


def in_file(tests):
    return {f"tests/test_a.py::{name}": kind for name, kind in tests.items()}


RECORDED = {
    "pytest_rA": ("parse_log_pytest", in_file(PYTEST | TEARDOWN)),
    "pytest_v": ("parse_log_pytest_v2", in_file(PYTEST | {"test_teardown": "failed", "test_skipped": "skipped"})),
    "pytest_xdist": ("parse_log_pytest_nebo", in_file(PYTEST | {"test_skipped": "skipped"})),
    "unittest": ("parse_log_django", UNITTEST),
    "sympy": (
        "parse_log_sympy",
        {
            "test_passes": "passed",
            "test_fails": "failed",
            "test_errors": "failed",
            "test_skips": "skipped",
            "test_expected": "xfailed",
        },
    ),
    "node_spec": ("node", JAVASCRIPT | {"outer > inner > passes in it": "passed", "outer": "failed"}),
    "node_tap": (
        "parse_log_tap",
        JAVASCRIPT
        | {"- passes": "passed", "- fails": "failed", "- is skipped # SKIP not now": "skipped", "outer": "failed"},
    ),
    "mocha": (
        "parse_log_js_2",
        {name: kind for name, kind in JAVASCRIPT.items() if name != "is to do"} | {"is slow": "passed"},
    ),
    "jest": ("parse_log_jest", JAVASCRIPT | {"is slow (1 ms)": "passed", "outer > fails": "failed", "is": None}),
    "vitest": (
        "parse_log_vitest",
        {f"a.test.js > outer > {name}": kind for name, kind in JAVASCRIPT.items() if name != "passes in it"}
        | {"a.test.js > outer > inner > passes in it": "passed", "a.test.js > outer > is slow": "passed"},
    ),
    "go_v": ("parse_log_gotest", GO),
    "go_json": ("go", GO | {"example.com/words/TestAll/two": "failed", "example.com/words/sub/TestBelow": "passed"}),
    "cargo": (
        "parse_log_cargo",
        {
            "tests::passes": "passed",
            "tests::fails": "failed",
            "tests::is_ignored": "skipped",
            "tests::panics": "passed",
            "src/lib.rs - f (line 1)": "passed",
            "result:": None,
        },
    ),
    "ctest": (
        "ctest",
        {"passes": "passed", "fails": "failed", "no_program": "failed", "skips": "skipped", "disabled": "skipped"},
    ),
    "googletest": (
        "parse_log_googletest",
        {
            "Words.Passes": "passed",
            "Words.Fails": "failed",
            "Words.Skips": "skipped",
            "All/P.Positive/0": "failed",
            "All/P.Positive/1": "passed",
        },
    ),
}
"""By a recorded log: the name of its parser, and what the tests did when it was recorded."""
DOCUMENTED = {
    "parse_log_maven": (
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.05 s - in org.x.ATest\n"
        "[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! -- in org.x.BTest\n"
        "[ERROR] org.x.BTest.fails -- Time elapsed: 0.003 s <<< FAILURE!\n"
        "[ERROR] errs(org.x.BTest)  Time elapsed: 0.001 s  <<< ERROR!\n"
        "+ mvn test -Dtest=CTest#one\n+ mvn test -Dtest=CTest#two\n[INFO] BUILD SUCCESS\n[INFO] BUILD FAILURE\n",
        {
            "org.x.ATest": "passed",
            "org.x.BTest": "failed",
            "org.x.BTest.fails": "failed",
            "org.x.BTest.errs": "failed",
            "CTest#one": "passed",
            "CTest#two": "failed",
        },
    ),
    "parse_log_gradle_custom": (
        "org.x.ATest > passes in words PASSED\norg.x.ATest > fails FAILED\norg.x.ATest > skips SKIPPED\n",
        {
            "org.x.ATest > passes in words": "passed",
            "org.x.ATest > fails": "failed",
            "org.x.ATest > skips": "skipped",
        },
    ),
    "parse_log_phpunit": (
        "Word (Tests\\Unit\\Word)\n ✔ It passes [1.34 ms]\n ✘ It fails\n ↩ It skips\n",
        {"Word > It passes": "passed", "Word > It fails [9 ms]": "failed", "Word > It skips": "skipped"},
    ),
    "parse_log_redis": (
        "[ok]: SET works (12 ms)\n[err]: GET works in tests/unit/a.tcl\n[skip]: old\n",
        {"SET works": "passed", "old": "skipped"},
    ),
    "parse_log_jq": (
        "PASS: tests/a\nFAIL: tests/b\nXFAIL: c\n",
        {"tests/a": "passed", "tests/b": "failed", "c": "xfailed"},
    ),
    "parse_log_micropython_test": (
        "pass  basics/a.py\nFAIL  basics/b.py\n",
        {"basics/a.py": "passed", "basics/b.py": "failed"},
    ),
    "parse_log_ant": ("[junit] [PASS] one\n    [junit] [ERR] two\n", {"one": "passed", "two": "failed"}),
    "parse_log_matplotlib": ("PASSED t.py::test[MouseButton.LEFT]\n", {"t.py::test[1]": "passed"}),
    "parse_log_pytest": (
        "PASSED t.py::a\nERROR t.py::a - ValueError\nFAILED t.py::b[x - y] - assert\nFAILED t.py::c[a b]\n"
        "PASSED t.py::c[a d]\nSKIPPED [1] t.py:3: not now\nt.py::d PASSED       [ 50%]\n",
        {"t.py::a": "failed", "t.py::b[x": "failed", "t.py::c[a": "failed", "[1]": None, "t.py::d": "passed"},
    ),
    "parse_log_sympy": (
        "_________ sympy/core/tests/test_a.py:test_b __________\n____ no_file ____\ntest_c ok     [OK]\n",
        {"sympy/core/tests/test_a.py:test_b": "failed", "no_file": None, "test_c": "passed"},
    ),
    "parse_log_cargo": ("test a ... words\nok\ntest b ... more\nFAILED\n", {"a": "passed", "b": "failed"}),
}


@pytest.mark.parametrize("log", RECORDED)
def test_what_tools_have_written_is_read_as_they_meant_it(log):
    name, expected = RECORDED[log]
    data = (LOGS / f"{log}.txt").read_bytes()
    for text in (data, data.replace(b"\n", b"\r\n")):
        ended = read_log(parser_named(name), text, expected)
        assert {test: ended.get(test) for test in expected} == expected


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_lines_are_read(name):
    text, expected = DOCUMENTED[name]
    ended = read_log(parser_named(name), text.encode(), expected)
    assert {test: ended.get(test) for test in expected} == expected


def test_the_last_verdict_on_a_test_counts():
    for text, kind in (
        ("PASSED t.py::a\nFAILED t.py::a - x\n", "failed"),
        ("FAILED t.py::a\nPASSED t.py::a\n", "passed"),
    ):
        assert read_log("pytest", text.encode(), ["t.py::a"]) == {"t.py::a": kind}


def test_parsers_are_chosen_by_commands_and_languages():
    commands = {
        "python -m pytest -rA x": "pytest",
        "./tests/runtests.py --verbosity 2": "unittest",
        "cargo test": "cargo",
        "go test -v ./...": "go",
        "npx vitest run": "vitest",
        "node --test --test-reporter=tap": "tap",
        "./gradlew test": "gradle",
    }
    assert {command: parser_for(command, "") for command in commands} == commands
    assert parser_for("make check", "Rust") == "cargo" and parser_named("pytest") == "pytest"
    assert parser_named("parse_log_ocaml_v5") == parser_named("import os") == ""
    with pytest.raises(UserError, match="name it by log_parser: automake, cargo"):
        parser_for("make check", "c++")


SIZE = 150_000
HOSTILE = {
    "a line of megabytes": b"PASSED " + b"a" * SIZE,
    "blanks": b" " * SIZE + b"\n" + b"\t" * SIZE,
    "dots": b"x ... " * (SIZE // 6),
    "marks": b"_" * SIZE + b" a.py:b " + b".py:" * (SIZE // 4),
    "markers of lines": b"A > " * (SIZE // 4) + b"\n" + b"--- PASS: (" * (SIZE // 11),
    "surefire": b"Tests run: 1, Failures: 0, Errors: 0, Skipped: 0 " + b"- in a " * (SIZE // 7),
    "escapes": b"\x1b[31" * (SIZE // 4) + b"\n" + b"\x1b]0;" * (SIZE // 4),
    "brackets": b"a" + b"[" * SIZE + b"\nPASSED a[/" + b"/" * SIZE,
    "objects": b"{" * SIZE + b"\n" + b'{"Action": "pass", "Package": ' * 1000,
    "depth": b"".join(b" " * (n % 4000) + b"suite\n" for n in range(2000)),
    "returns": b"\r" * SIZE + b"\nPASSED b",
    "numbers": b"1/1 Test #1: " + b"." * SIZE + b"\n[ " + b" " * SIZE + b"OK ] a",
    "seconds": b"\xe2\x9c\x93 a" + b" 1" * (SIZE // 2) + b"\n" + b"\xe2\x9c\x93 a (1 ms)\n" * 3000,
    "no text": bytes(range(256)) * (SIZE // 256),
}
KINDS = (
    "pytest",
    "unittest",
    "sympy",
    "tap",
    "jest",
    "mocha",
    "go",
    "cargo",
    "maven",
    "gradle",
    "googletest",
    "ctest",
    "automake",
    "phpunit",
)


def test_hostile_lines_take_no_time_of_any_parser():
    """Each log is what some pattern would be slow on; all of them together are read in a blink."""
    begun = time.process_time()
    for log in HOSTILE.values():
        for kind in KINDS:
            read_log(kind, log, ["a", "a[x"])
    assert time.process_time() - begun < 3.0


def test_lines_that_are_filled_with_what_patterns_look_for_take_time_in_proportion():
    """Lines of the length that is read: a parser whose time grows with its square takes a minute."""
    for kind in KINDS:
        for part in (
            b"A > ",
            b" PASSED",
            b" ... ",
            b"a.py:",
            b" (0s",
            b" - in ",
            b"[ OK ] ",
            b"::a[/",
            b"\x1b[",
            b" # ",
            b"-Dtest=",
        ):
            line = b"___ " + part * (4000 // len(part)) + b"\n"
            begun = time.process_time()
            read_log(kind, line * 30, ["a"])
            assert time.process_time() - begun < 0.5, (kind, part)


def test_more_than_is_read_is_left_out(monkeypatch):
    monkeypatch.setattr(log_parsers, "MOST_LINES", 5000)
    late = b"\n" * 5000 + b"PASSED t.py::a\n"
    assert read_log("pytest", late, ["t.py::a"]) == {}
    assert read_log("pytest", late[1:], ["t.py::a"]) == {"t.py::a": "passed"}
    wide = b"t.py::a" + b" " * 5000 + b"PASSED\n"
    assert read_log("pytest", wide, ["t.py::a"]) == {}
    far = b"x" * LARGEST_LOG + b"\nPASSED t.py::a\n"
    assert read_log("pytest", far, ["t.py::a"]) == {}


def test_of_many_tests_those_are_kept_that_are_listed():
    many = b"".join(b"PASSED t.py::%d\n" % number for number in range(8_000))
    tracemalloc.start()
    assert read_log("pytest", many, ["t.py::7"]) == {"t.py::7": "passed"}
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


class _Printing:
    """Stands in for a sandbox whose commands print a long log."""

    async def write(self, path, data):
        begin, end = re.findall(r"(?:begin|end)-[0-9a-f]+", data.decode())
        self._output = f"\n{begin}\n{'PASSED a' * 100}\n{'PASSED t.py::a' + chr(10)}".encode() + b"PASSED a\n" * 60_000
        self._output += f"\n{end}\n".encode()

    async def exec(self, argv, **settings):
        return ExecResult(0, self._output, b"", 0.0)


def test_event_loops_go_on_while_logs_are_read():
    metadata = {"fail_to_pass": ["t.py::a"], "pass_to_pass": [], "parser": "pytest", "marked": False}
    task = Task("one", "swe_images", (), "swe_images", metadata=metadata | {"commands": ["", "pytest", ""]})

    async def turns():
        reading, count = asyncio.create_task(run_tests(task, _Printing(), "/", {})), 0
        while not reading.done():
            await asyncio.sleep(0.002)
            count += 1
        return count, await reading

    count, ended = asyncio.run(turns())
    assert count > 5 and ended == ({"t.py::a": "passed"}, "")
