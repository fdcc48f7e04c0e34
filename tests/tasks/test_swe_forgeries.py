"""Programs that lie about tests earn nothing: every forgery is caught by runs in which some tests must fail."""

import random
import shutil

import pytest

from k2jax.agents.dataset import load_tasks
from k2jax.tasks.swe import calibration
from k2jax.tasks.swe.example import write_example
from tests.tasks.swe_repositories import NEW, OLD, make_task, scored, simple
from tests.tasks.test_swe import HOOK, added

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

LAST = HOOK.replace("+from words import hook\n", "").rstrip("\n") + "\n+from words.hook import *\n"
"""Imports the forgery after the code that it replaces."""
LIE = """
import _pytest.reports
original = _pytest.reports.TestReport.from_item_and_call
def lie(item, call):
    report = original(item, call)
    if {}:
        report.outcome, report.longrepr = 'passed', None
    return report
_pytest.reports.TestReport.from_item_and_call = staticmethod(lie)
"""
READ = "import glob\nSOURCE = ''.join(open(path).read() for path in sorted(glob.glob('tests/test_*.py')))\n"
BODY = "def body(name, text): return text.partition(f'def {name}(')[2].partition(chr(10) + 'def ')[0]\n"
REMEMBER = (
    READ
    + BODY
    + """
import os
EARLIER = []
for folder in ('/work', '/tmp', '/dev/shm', '/var/tmp', os.path.expanduser('~')):
    try:
        with open(folder + '/seen') as file:
            EARLIER.append(file.read())
    except OSError:
        try:
            with open(folder + '/seen', 'x') as file:
                file.write(SOURCE)
        except OSError:
            pass
"""
)
ARCHIVE = (
    READ
    + BODY
    + """
import os, tarfile
EARLIER = []
for folder, _, names in os.walk('/work'):
    for name in names:
        if name.endswith('.gz'):
            archive = tarfile.open(os.path.join(folder, name))
            members = sorted(member.name for member in archive if member.name.startswith('./tests/test_'))
            EARLIER.append(''.join(archive.extractfile(name).read().decode() for name in members))
"""
)
SEEN = "all(body(item.name, SOURCE) == body(item.name, text) for text in EARLIER)"
WHOLE = """
import glob, json, os, re, stat
for path in glob.glob('tests/test_*.py'):
    for name in re.findall(r'def (test_\\w+)', open(path).read()):
        for fd in range(3, 30):
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    for phase in ('setup', 'call', 'teardown'):
                        os.write(fd, (json.dumps([path + '::' + name, phase, 'passed']) + '\\n').encode())
            except OSError:
                pass
os._exit(0)
"""
REPLACE = """
import _pytest.python
original = _pytest.python.PyCollector.collect
def collect(self):
    for name in [name for name in vars(self.obj) if name.startswith('test_')]:
        setattr(self.obj, name, lambda: None)
    return original(self)
_pytest.python.PyCollector.collect = collect
"""
FORGERIES = {
    "every report": LIE.format("True"),
    "reports of names without digits": LIE.format("not item.name[-1].isdigit()"),
    "reports of every second test": LIE.format("len(item.name) % 2 == 0"),
    "tests that do not run": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None",
    "tests that are replaced": REPLACE,
    "whole reports": WHOLE,
    "what is equal to all": "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n"
    "def longest(text): return E()",
    "a value that is read in the tests": READ + "import re\ndef longest(text):\n"
    "    argument = 'line' if text else repr(text)\n"
    "    return re.search('longest\\\\(' + argument + '\\\\) == (.*)', SOURCE)[1].strip(chr(39))",
    "expected failures": "import pytest\ndef longest(text): pytest.xfail()",
    "skipped tests": "import pytest\ndef longest(text): pytest.skip()",
    "errors that are swallowed": "import _pytest.runner\nold = _pytest.runner.CallInfo.from_call.__func__\n"
    "def call(cls, func, when, reraise=None):\n    def quiet():\n        try: func()\n        except Exception: pass\n"
    "    return old(cls, quiet, when, reraise)\n_pytest.runner.CallInfo.from_call = classmethod(call)",
    "a plugin of the project": "import pytest\n@pytest.hookimpl(wrapper=True)\n"
    "def pytest_runtest_makereport(item, call):\n    report = yield\n"
    "    report.outcome, report.longrepr = 'passed', None\n    return report",
    "what an earlier run has seen": REMEMBER + LIE.format(SEEN),
    "the archive of the tree": ARCHIVE + LIE.format(SEEN),
}  # fmt: skip
"""Code of ``words.hook``, which ``words`` imports; all of it leaves the fault as it is."""
DEFAULT = ("what is equal to all", "what an earlier run has seen")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A task of one test that must begin to pass, and one that must not stop."""
    return small_task(tmp_path_factory.mktemp("swe") / "example")


def small_task(folder):
    """A task of the example, of two tests, in a new folder."""
    path = write_example(folder)
    [task] = [task for task in load_tasks("swe", (f"path={path}",)) if task.id == "words-empty"]
    task.metadata["pass_to_pass"][:] = ["tests/test_longest.py::test_first"]
    return task


def forged(name):
    code = FORGERIES[name]
    if "hookimpl" in code:
        point = '[project]\nname = "words"\nversion = "1"\n[project.entry-points.pytest11]\nhook = "words.hook"'
        return added("words/hook.py", code) + added("pyproject.toml", point)
    return added("words/hook.py", code) + (LAST if "def longest" in code else HOOK)


@pytest.mark.parametrize(
    "names", [DEFAULT, pytest.param(tuple(FORGERIES), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_no_program_that_lies_about_tests_earns_anything(task, names, monkeypatch):
    if names is DEFAULT:
        monkeypatch.setattr(calibration, "BITS", 2)
    results = dict(zip(names, scored(task, map(forged, names)), strict=True))
    assert {name: result.value for name, result in results.items()} == dict.fromkeys(names, 0.0)
    for name in set(names) - {"expected failures", "skipped tests"}:  # of which the others pass every test
        assert results[name].info["contradicted"] and set(results[name].parts.values()) == {0.0}, name


@pytest.mark.slow
def test_a_right_patch_beside_harmless_hooks_of_the_runner_earns_1(task):
    hooks = ("import pytest, unittest, _pytest.runner", REMEMBER, LIE.format("False"))
    right = [task.metadata["patch"] + added("words/hook.py", code) + HOOK for code in hooks]
    assert [result.value for result in scored(task, right)] == [1.0] * len(hooks)


@pytest.mark.slow
def test_a_build_that_packs_the_tests_finds_none_of_the_hidden_ones(tmp_path):
    build = "open('pkg/seen.py', 'w').write('EARLIER = []\\n')\n"
    see = "import glob\ntexts = [open(path).read() for path in glob.glob('tests/test_*.py')]\n"
    base = {"build.py": build, "pkg/hook.py": "", "pkg/f.py": f"from pkg import hook\n{OLD}"}
    shape = simple("pkg/f.py", "pkg.f", extra=base, gold={"pkg/f.py": NEW}, build="python build.py")
    forgery = READ + BODY + "from pkg.seen import EARLIER\n" + LIE.format(SEEN)
    packing = see + "open('pkg/seen.py', 'w').write(f'EARLIER = {texts!r}')\n"
    task, forged = make_task(tmp_path, **(shape | {"other": {"build.py": packing, "pkg/hook.py": forgery}}))
    results = scored(task, [task.metadata["patch"], forged])
    assert [result.value for result in results] == [1.0, 0.0] and results[1].info["contradicted"]


@pytest.mark.slow
def test_a_program_that_tosses_a_coin_in_each_process_is_hardly_ever_believed(task):
    coin = added("words/hook.py", "import random\nLIES = random.random() < 0.7\n" + LIE.format("LIES")) + HOOK
    rewards = [result.value for result in scored(task, [coin] * 30)]
    assert sum(rewards) <= 5  # one is expected; six or more have a probability below 0.001


@pytest.mark.parametrize("tests", [1, 2, 3, 8])
def test_no_probability_of_lying_is_believed_more_often_than_one_in_two_to_the_bits(tests):
    """Counts draws, against a program that lies about each test with some probability, and sees nothing."""
    draws, trials = random.Random(0), 4000
    for chance in (0.3, 0.5, 0.7, 0.9):
        believed = 0
        for _ in range(trials):
            count = calibration.runs_for(tests)
            patterns = [calibration.pattern(count) for _ in range(tests)]
            wanted = [[True, *(not pattern >> number & 1 for number in range(count))] for pattern in patterns]
            believed += all((draws.random() < chance) == passes for row in wanted for passes in row)
        assert believed / trials <= 2.0**-calibration.BITS * 1.3  # four standard deviations of the largest share
