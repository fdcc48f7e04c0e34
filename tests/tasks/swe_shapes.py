"""Shapes of repositories: where packages and tests lie, what configures them, and how tests are written."""

from pathlib import Path
import shutil

import _pytest
import pytest

from tests.tasks.swe_repositories import NEW, SETUP, make_task, package, simple


def runner():
    """A repository that is pytest itself, with a fault in one of its modules."""
    folder, gold = Path(_pytest.__file__).parent, "src/_pytest/stash.py"
    base = {f"src/_pytest/{p.relative_to(folder)}": p.read_text("utf-8") for p in folder.rglob("*.py")}
    base |= {
        f"src/pytest/{name}.py": (Path(pytest.__file__).parent / f"{name}.py").read_text()
        for name in ("__init__", "__main__")
    }
    fixed = base[gold]
    base[gold] = fixed.replace("return len(self._storage)", "return 1 + len(self._storage)")
    assert base[gold] != fixed
    test = "from _pytest.stash import Stash\n\n\ndef test_empty():\n    assert len(Stash()) == 0\n"
    tests = {"testing/test_stash.py": test}
    return {"base": base, "gold": {gold: fixed}, "tests": tests, "failing": ["testing/test_stash.py::test_empty"]}


def plugin():
    """A plugin of pytest, which declares itself in pyproject.toml and tests itself by pytester."""
    point = '[project.entry-points.pytest11]\nwords = "pytest_words.plugin"\n'
    text = (
        "import pytest\n\n\ndef pytest_addoption(parser):\n    parser.addoption('--words', type=int, default=2)\n\n\n"
        "@pytest.fixture\ndef words(request):\n    return ['w'] * {}\n"
    )
    path, count = "src/pytest_words/plugin.py", "request.config.getoption('--words')"
    inner = "def test_inner(words):\n    assert len(words) == 3\n"
    test = (
        "def test_default(words):\n    assert words == ['w', 'w']\n\n\n"
        f"def test_option(pytester):\n    pytester.makepyfile({inner!r})\n"
        "    result = pytester.runpytest('--words=3')\n    result.assert_outcomes(passed=1)\n"
    )
    names = [f"tests/test_plugin.py::{name}" for name in ("test_option", "test_default")]
    base = package(path, text.format(2)) | {
        "pyproject.toml": SETUP.replace("my-pkg", "pytest-words") + point,
        "conftest.py": "pytest_plugins = ['pytester']\n",
    }
    tests = {"tests/test_plugin.py": test}
    return {
        "base": base,
        "gold": {path: text.format(count)},
        "tests": tests,
        "failing": names[:1],
        "passing": names[1:],
    }


def compiled():
    """A package with an extension in C, which a command builds."""
    code = (
        "#include <Python.h>\nstatic PyObject *f(PyObject *self, PyObject *x) {{\n"
        "    return PyLong_FromLong(PyLong_AsLong(x){});\n}}\n"
        'static PyMethodDef methods[] = {{{{"f", f, METH_O, ""}}, {{NULL}}}};\n'
        'static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_fast", "", -1, methods}};\n'
        "PyMODINIT_FUNC PyInit__fast(void) {{ return PyModule_Create(&module); }}\n"
    )
    include = "$(python -c 'import sysconfig; print(sysconfig.get_path(\"include\"))')"
    build = f"cc -shared -fPIC -I{include} -o pkg/_fast.so pkg/_fast.c"
    base = package("pkg/_fast.c", code.format("")) | {"pkg/__init__.py": "from pkg._fast import f\n"}
    fields = simple("pkg/f.py", "pkg") | {"gold": {"pkg/_fast.c": code.format(" + 1")}, "build": build}
    base["tests/test_f.py"] = "from pkg import f\n\n\ndef test_old():\n    assert f(0) != 5\n"
    tests = {"tests/test_f.py": base["tests/test_f.py"] + "\n\ndef test_new():\n    assert f(1) == 2\n"}
    return fields | {"base": base, "tests": tests, "other": {"pkg/_fast.c": code.format(" - -1")}}


def settings(path, before, after, check):
    """A task whose fix is in a file of settings."""
    test = f"import pathlib\n\n\ndef test_old():\n    pass\n\n\ndef test_new():\n    {check}\n"
    base = {path: before, "tests/test_f.py": "def test_old():\n    pass\n"}
    names = ["tests/test_f.py::test_new"], ["tests/test_f.py::test_old"]
    return {
        "base": base,
        "gold": {path: after},
        "tests": {"tests/test_f.py": test},
        "failing": names[0],
        "passing": names[1],
    }


CLASS = (
    "import unittest\n\nfrom pkg.test.client import f\n\n\nclass {0}Test(unittest.TestCase):\n"
    "    def test_old(self):\n        self.assertTrue(callable(f))\n"
)
NEW_METHODS = (
    "\n    def test_new(self):\n        self.assertEqual(f(1), 2)\n\n"
    "    def test_sub(self):\n        for i in range(2):\n            with self.subTest(i=i):\n"
    "                self.assertEqual(f(i), i + 1)\n"
)
INI = "[pytest]\naddopts = -x --ff\nxfail_strict = false\n"
LEFT = (
    "def test_new():\n    os.write(2, b'x' * 300_000)\n    threading.Thread(target=time.sleep, args=(900,)).start()\n"
    "    subprocess.Popen(['python', '-c', 'import time; time.sleep(900)'], close_fds=False)\n    assert f(1) == 2\n"
)
MARKS = (
    "@pytest.mark.xfail\ndef test_xfail():\n    assert f(1) == 3\n\n\n"
    "@pytest.mark.skipif(True, reason='no')\ndef test_skip():\n    assert f(1) == 3\n\n\n"
    "def test_old():\n    assert callable(f)\n"
)
ROWS = "@pytest.mark.parametrize('x, y', [(1, 2), (5, 6), (8, 9)])\ndef test_new(x, y):\n    assert f(x) == y\n"
FIXTURE = "import pytest\n\n\n@pytest.fixture{}\ndef {}({}):\n    return {}\n"
INI_OPTIONS = '[tool.pytest.ini_options]\naddopts = "-x --ff -q"\n'
TESTS_PY = "[pytest]\npython_files = tests.py\n"
PACKAGE_DIR = "[options]\npackage_dir =\n    = source\n"
LEVELS = {
    "conftest.py": FIXTURE.format("", "one", "", "1"),
    "tests/conftest.py": FIXTURE.format("(autouse=True, params=['a', 'b'])", "each", "request", "request.param"),
    "tests/unit/__init__.py": "",
    "tests/__init__.py": "",
    "tests/unit/conftest.py": FIXTURE.format("", "two", "one", "one + 1"),
}
THREE = LEVELS["tests/unit/conftest.py"] + "\n\n@pytest.fixture\ndef three(two):\n    return two + 1\n"
SHAPES = {
    "flat": lambda: simple("pkg/f.py", "pkg.f"),
    "src": lambda: simple("src/pkg/f.py", "pkg.f", extra={"pyproject.toml": SETUP}),
    "lib by name": lambda: simple("source/pkg/f.py", "pkg.f", extra={"setup.cfg": PACKAGE_DIR}),
    "testing": lambda: simple("pkg/testing/f.py", "pkg.testing.f"),
    "a client of tests": lambda: simple("pkg/test/client.py", "pkg.test.client", extra={"pytest.ini": TESTS_PY})
    | {
        "tests": {"tests/client/tests.py": CLASS.format("Client") + NEW_METHODS},
        "failing": [f"tests/client/tests.py::ClientTest::{name}" for name in ("test_new", "test_sub")],
        "passing": ["tests/client/tests.py::ClientTest::test_old"],
    },
    "names of tests": lambda: simple("pkg/test_utils.py", "pkg.test_utils"),
    "pytest": runner,
    "a plugin": plugin,
    "autouse": lambda: simple(
        "pkg/f.py",
        "pkg.f",
        imports="import pytest\n",
        new="@pytest.fixture(autouse=True, params=['a', 'b'])\ndef each(request):\n    pass\n\n\n"
        "def test_new():\n    assert f(1) == 2\n",
        failing=("test_new[a]", "test_new[b]"),
        passing=("test_old[a]", "test_old[b]"),
    ),
    "rows": lambda: simple(
        "pkg/f.py", "pkg.f", imports="import pytest\n", new=ROWS, failing=("test_new[1-2]", "test_new[5-6]")
    ),
    "parametrised module": lambda: simple(
        "pkg/f.py",
        "pkg.f",
        imports="import pytest\n",
        old="pytestmark = pytest.mark.parametrize('x', [1, 2])\n\n\ndef test_old(x):\n    assert callable(f)\n",
        new="def test_new(x):\n    assert f(x) == x + 1\n",
        failing=("test_new[1]", "test_new[2]"),
        passing=("test_old[1]", "test_old[2]"),
    ),
    "expected failures": lambda: simple(
        "pkg/f.py", "pkg.f", imports="import pytest\n", old=MARKS, passing=("test_old", "test_xfail", "test_skip")
    ),
    "conftest": lambda: simple(
        "pkg/f.py",
        "pkg.f",
        file="tests/unit/test_f.py",
        extra=LEVELS,
        gold={"pkg/f.py": NEW, "tests/unit/conftest.py": THREE},
        new="def test_new(one, two, three):\n    assert f(one) == two\n    assert f(two) == three == 3\n",
        failing=("test_new[a]", "test_new[b]"),
        passing=("test_old[a]", "test_old[b]"),
    )
    | {"other": None},
    "several things": lambda: simple(
        "src/pkg/testing/f.py",
        "pkg.testing.f",
        file="tests/unit/test_f.py",
        extra=LEVELS | {"pyproject.toml": SETUP + '[tool.pytest.ini_options]\naddopts = "-x --ff"\n'},
        imports="import pytest\n",
        gold={"src/pkg/testing/f.py": NEW, "tests/unit/conftest.py": THREE, "pyproject.toml": SETUP + INI_OPTIONS},
        old=MARKS,
        new="def test_new(one, two, three):\n    assert f(one) == two\n    assert f(two) == three == 3\n",
        failing=("test_new[a]", "test_new[b]"),
        passing=[f"{name}[{each}]" for name in ("test_old", "test_skip", "test_xfail") for each in "ab"],
    )
    | {"other": None},
    "pyproject": lambda: settings(
        "pyproject.toml",
        SETUP + '[tool.pytest.ini_options]\naddopts = "-x"\n[tool.other]\na = 1\n',
        SETUP.replace("1.5", "2.0") + '[tool.pytest.ini_options]\naddopts = "-x"\n[tool.other]\na = 2\n',
        "assert 'a = 2' in pathlib.Path('pyproject.toml').read_text()",
    ),
    "setup.cfg": lambda: settings(
        "setup.cfg",
        "[metadata]\nname = my_pkg\nversion = 1.5\n",
        "[metadata]\nname = my_pkg\nversion = 2.0\n",
        "import importlib.metadata as m\n\n    assert m.version('my-pkg') == '2.0'",
    ),
    "an extension": compiled,
    "own names": lambda: simple(
        "pkg/f.py",
        "pkg.f",
        extra={"pytest.ini": "[pytest]\npython_functions = check_*\n"},
        old="def check_old():\n    assert callable(f)\n",
        new="def check_new():\n    assert f(1) == 2\n",
        failing=("check_new",),
        passing=("check_old",),
    ),
    "tests beside": lambda: simple("pkg/f.py", "..f", file="pkg/tests/test_f.py", extra={"pkg/tests/__init__.py": ""}),
    "what tests leave": lambda: simple(
        "pkg/f.py", "pkg.f", imports="import os, subprocess, threading, time\n", new=LEFT, extra={"pytest.ini": INI}
    ),
    "a command": lambda: simple(
        "src/pkg/f.py",
        "pkg.f",
        imports="import subprocess\n",
        extra={"src/pkg/__main__.py": "from pkg.f import f\n\nprint(f(1))\n"},
        new="def test_new():\n    assert subprocess.check_output(['python', '-m', 'pkg']) == b'2\\n'\n",
    ),
    "errors": lambda: simple(
        "f.py",
        "f",
        imports="import pytest\n",
        gold={"f.py": "def f(x):\n    if x < 0:\n        raise ValueError(f'{x} is negative')\n    return x + 1\n"},
        new="def test_new():\n    with pytest.raises(ValueError, match='is negative'):\n        f(-1)\n"
        "    assert f(1.5) == pytest.approx(2.5)\n",
    )
    | {"other": {"f.py": "def f(x):\n    if 0 > x:\n        raise ValueError('it is negative')\n    return 1 + x\n"}},
    "documents": lambda: simple("pkg/f.py", "pkg.f", failing=("test_new",))
    | {
        "failing": ["tests/test_f.py::test_new", "docs/use.rst::use.rst"],
        "extra": None,
    },
}  # fmt: skip


def task_of(name, folder):
    """The task of a shape and another right patch, or None."""
    shape = dict(SHAPES[name]())
    if shape.pop("extra", 0) is None:
        shape["tests"]["docs/use.rst"] = ">>> from pkg.f import f\n>>> f(1)\n2\n"
    return make_task(folder, **shape)


def needs(name):
    """Whether this machine has what a shape takes."""
    return name != "an extension" or shutil.which("cc") is not None
