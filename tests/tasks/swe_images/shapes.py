"""Repositories of six shapes, in which f(x) must become x + 1, and what rows about them say."""

import shutil

OLD, NEW = "def f(x):\n    return x\n", "def f(x):\n    return x + 1\n"
SHELL_OLD, SHELL_NEW = "f() { echo $1; }\n", "f() { echo $(($1 + 1)); }\n"
CONFIG = "[pytest]\npythonpath = src\n"
SRC_LAYOUT = {
    "base": {
        "src/pkg/__init__.py": OLD,
        "tests/test_old.py": "from pkg import f\n\n\ndef test_old():\n    assert f(1) is not None\n",
        "tests/test_new.py": "def test_nothing():\n    pass\n",
        "pytest.ini": CONFIG,
    },
    "fix": {"src/pkg/__init__.py": NEW, "src/pkg/data.bin": "a\0b", "src/pkg/extra.py": "Y = 1\n"},
    "tests": {
        "tests/test_new.py": "import pytest\nfrom pkg import f\n\n\ndef test_nothing():\n    pass\n\n\n"
        "@pytest.mark.parametrize('x', ['a b', 'a c'])\ndef test_new(x):\n    assert f(1) == 2\n",
        "tests/conftest.py": "",
    },
    # Lists of SWE-bench end where a parameter has a blank.
    "FAIL_TO_PASS": ["tests/test_new.py::test_new[a"],
    "PASS_TO_PASS": ["tests/test_old.py::test_old", "tests/test_new.py::test_nothing"],
}
EVAL_SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git status
git checkout {base} tests/test_new.py
rm -f tests/conftest.py
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
python -m pytest -rA tests/test_new.py tests/test_old.py
: '>>>>> End Test Output'
git checkout {base} tests/test_new.py
exit 3
"""
RUNTESTS = """#!/usr/bin/env python
import sys, unittest
sys.path.insert(0, ".")
assert sys.argv[1:3] == ["--verbosity", "2"], sys.argv
labels = ["tests." + label for label in sys.argv[1:] if label.startswith("app_")]
suite = unittest.defaultTestLoader.loadTestsFromNames(labels)
unittest.TextTestRunner(verbosity=2).run(suite)
"""
DJANGO_TESTS = """import unittest
from pkg import f

class FTest(unittest.TestCase):
    def test_old(self):
        self.assertTrue(f(1))
"""
DJANGO = {
    "base": {"pkg.py": OLD, "tests/runtests.py": RUNTESTS, "tests/app_f/tests.py": DJANGO_TESTS},
    "fix": {"pkg.py": NEW},
    "tests": {
        "tests/app_f/tests.py": f"{DJANGO_TESTS}\n    def test_new(self):\n        '''It is one more.'''\n"
        "        print('some words')\n        self.assertEqual(f(1), 2)\n"
    },
    "FAIL_TO_PASS": ["test_new (tests.app_f.tests.FTest.test_new)", "It is one more."],
    "PASS_TO_PASS": ["test_old (tests.app_f.tests.FTest.test_old)"],
    "fields": {"repo": "django/django", "version": "5.0"},
}


def runner(line_ok, line_failed, header=""):
    """A runner of its own of a repository of shell functions: a file of tests has functions that succeed or fail."""
    return (
        f"#!/bin/sh\n. ./lib.sh\n{header}\nn=0\nfor file in tests/*.sh; do . ./$file; "
        "for name in $(sed -n 's/^\\(test_[a-z]*\\)().*/\\1/p' $file); do n=$((n + 1)); "
        f'if $name; then echo "{line_ok}"; else echo "{line_failed}"; fi; done; done\n'
    )


def shell_shape(program, text, failing, passing, **fields):
    """A repository of shell functions with a runner."""
    return {
        "base": {"lib.sh": SHELL_OLD, program: text, "tests/old.sh": "test_old() { [ -n $(f 1) ]; }\n"},
        "fix": {"lib.sh": SHELL_NEW},
        "tests": {"tests/new.sh": "test_new() { [ $(f 1) = 2 ]; }\n"},
        "FAIL_TO_PASS": [failing],
        "PASS_TO_PASS": [passing],
        "fields": fields,
    }


SYMPY = shell_shape("bin/test", runner("$name ok", "$name F"), "test_new", "test_old", repo="sympy/sympy")
SYMPY["base"]["tests/placeholder.py"] = ""
SYMPY["tests"]["tests/placeholder.py"] = "# new\n"
TAP = shell_shape(
    "run.sh",
    runner("ok $n - $name", "not ok $n - $name", "echo TAP version 13"),
    "test_new",
    "test_old",
    language="c",
    test_cmds=["export WORD=x", 'test "$WORD" = x && ./run.sh'],
    log_parser="tap",
)
GO = shell_shape(
    "go.mod",
    "module x\n",
    "TestAll/test_new",
    "TestAll/test_old",
    language="go",
    env={"PATH": "/usr/local/go/bin:/usr/bin"},
    install_config={"test_cmd": "go test -v ./...", "log_parser": "parse_log_gotest"},
)
GO_PROGRAM = runner("    --- PASS: TestAll/$name (0.00s)", "    --- FAIL: TestAll/$name (0.00s)", "echo === RUN")
CARGO = shell_shape(
    "Cargo.toml",
    "[package]\n",
    "all::test_new",
    "all::test_old",
    language="rust",
    test_cmd="cargo test",
    timeout=60,
)
CARGO_PROGRAM = runner("test all::$name ... ok", "test all::$name ... FAILED")
LIVE = shell_shape(
    "run.sh",
    runner("PASSED tests/x.py::$name", "FAILED tests/x.py::$name - assert"),
    "tests/x.py::test_new",
    "tests/x.py::test_old",
    rebuild_cmds=["cp lib.sh built.sh"],
    test_cmds=["echo PASSED tests/x.py::test_new", "test -f built.sh && ./run.sh > /tmp/log"],
    print_cmds=["cat /tmp/log"],
    log_parser="pytest",
)
NODE_TEST = "const test = require('node:test');\nconst assert = require('assert');\nconst f = require('../f.js');\n"
NODE = {
    "base": {
        "f.js": "module.exports = (x) => x;\n",
        "test/old.test.js": f"{NODE_TEST}test('is there', () => assert.ok(f(1)));\n",
    },
    "fix": {"f.js": "module.exports = (x) => x + 1;\n"},
    "tests": {"test/new.test.js": f"{NODE_TEST}test('adds one', () => assert.strictEqual(f(1), 2));\n"},
    "FAIL_TO_PASS": ["adds one"],
    "PASS_TO_PASS": ["is there"],
    "fields": {"language": "javascript", "test_cmd": "node --test --test-reporter=tap test/"},
}
IMAGES = {
    "swebench/sweb.eval.src:latest": (
        "full",
        "/testbed",
        SRC_LAYOUT,
        {"setup": {"pytest.ini": f"{CONFIG}# built\n"}},
    ),
    "tests/django:1": ("full", "/app", DJANGO, {"workdir": "/app/tests"}),
    "tests/sympy:1": (
        "shell",
        "/testbed",
        SYMPY,
        {"setup": {"README": "built\n"}, "extra": {"testbed/[a] b*#.o": "x"}},
    ),
    "tests/tap:1": (
        "shell",
        "/srv/the project",
        {**TAP, "fields": TAP["fields"] | {"workdir": "/srv/the project"}},
        {},
    ),
    "tests/go:1": ("shell", "/testbed", GO, {"extra": {"usr/local/go/bin/go": GO_PROGRAM}}),
    "tests/cargo:1": ("shell", "/app", CARGO, {"extra": {"usr/bin/cargo": CARGO_PROGRAM}, "workdir": "/app"}),
    "tests/live:1": ("shell", "/testbed", LIVE, {}),
}
"""Images by their names: kind, place of the repository, shape, and what else ``make_image`` is given."""
if shutil.which("node"):
    IMAGES["tests/node:1"] = ("full", "/app", NODE, {"workdir": "/app"})
