"""Tests on emulated devices. JAX makes its devices when a program starts, so such tests run in a child process.

A file with ``pytestmark = pytest.mark.devices(8)``, or a test with that mark, holds ordinary tests. The parent starts
one child pytest for all selected tests of a file that need the same number of devices, and reports each test as its
own, with the child's message where it failed. To debug such tests in one process, give it the devices:
``XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest -n0 --pdb tests/inference/test_mesh.py``.
"""

import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile

import pytest

ROOT = Path(__file__).parents[1]
OUTCOMES = "K2JAX_TEST_OUTCOMES"
"""Environment variable of a child: the file to which it appends the outcome of every test as a line of JSON."""
TIMEOUT_SECONDS = 3600
# By default XLA:CPU runs independent collectives of a program side by side, in another order on every device: with
# fewer threads than devices they can wait for each other for ever.
IN_ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def run_on(devices: int, *arguments: str, timeout: int | None = None, only_compiles: bool = False) -> str:
    """Standard output of ``python ARGUMENTS`` in the repository with emulated devices; fails if the program fails.

    One that only compiles has operations in XLA's own order, which decides how much memory is needed.
    """
    command = [sys.executable, *arguments]
    environment = _environment(devices, "" if only_compiles else IN_ONE_ORDER)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def delegate(items: list[pytest.Item]) -> None:
    """Replace items that need other devices than this process has by items that report a child's outcome."""
    children = {}
    for index, item in enumerate(items):
        marker = item.get_closest_marker("devices")
        if marker and marker.args[0] != _devices_of_this_process():
            child = children.setdefault((item.path, *marker.args), _Child(item.path, *marker.args))
            child.tests.append(_name_in_file(item.nodeid))
            items[index] = _Delegated.from_parent(item.parent, name=item.name, original=item, child=child)


def dispatch_at_once() -> None:
    """Let operations on one device run at once; a process with emulated devices calls it first.

    Dispatched beside a program of several devices, they take threads that its collectives wait for, perhaps for ever.
    """
    import jax  # Not above: the parent loads this module before it has set the environment of JAX.

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def pytest_configure() -> None:
    """Prepare a child process."""
    dispatch_at_once()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell the parent how a phase of a test ended: the child loads this module as a plugin of pytest."""
    if report.when == "call" or not report.passed:
        text = report.longreprtext if report.failed else str(report.longrepr)
        line = json.dumps({"test": _name_in_file(report.nodeid), "outcome": report.outcome, "text": text})
        with open(os.environ[OUTCOMES], "a", encoding="utf-8") as file:
            file.write(line + "\n")


class _Child:
    """A child pytest for tests of one file, started when the first of its outcomes is asked for."""

    def __init__(self, file: Path, devices: int):
        self.devices, self.tests = devices, []
        self._file, self._outcomes, self._output = file, None, ""

    def outcome(self, test: str) -> tuple[str, str]:
        """``passed``, ``failed`` or ``skipped``, and the text of the failure or the reason."""
        if self._outcomes is None:
            self._outcomes = self._run()
        return self._outcomes.get(test, ("failed", f"the child process did not report this test:\n{self._output}"))

    def _run(self) -> dict[str, tuple[str, str]]:
        # Without the options of pyproject.toml: what is selected is decided, and one process has the devices.
        options = ["-c", "pyproject.toml", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
        tests = [f"{self._file}::{test}" for test in self.tests]
        with tempfile.TemporaryDirectory() as folder:
            outcomes_file = Path(folder) / "outcomes.jsonl"
            outcomes_file.touch()
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, "-p", "tests.emulated", *tests],
                cwd=ROOT,
                env=_environment(self.devices) | {OUTCOMES: str(outcomes_file)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
            lines = [json.loads(line) for line in outcomes_file.read_text(encoding="utf-8").splitlines()]
        self._output = done.stdout[-5000:]
        outcomes = {}
        for line in lines:  # A teardown that fails after a call that passed makes the test fail.
            if outcomes.get(line["test"], ("passed", ""))[0] == "passed":
                outcomes[line["test"]] = line["outcome"], line["text"]
        return outcomes


class _Delegated(pytest.Item):
    """A test that runs in a child process."""

    def __init__(self, *, original: pytest.Item, child: _Child, **options):
        super().__init__(**options)
        # The child ends a test that hangs and prints its stacks; TIMEOUT_SECONDS is for a child that cannot.
        self.own_markers = [*original.own_markers, pytest.mark.timeout(0).mark]
        self._original, self._child = original, child

    def runtest(self):
        outcome, text = self._child.outcome(_name_in_file(self.nodeid))
        if outcome == "skipped":
            pytest.skip(text)
        if outcome == "failed":
            raise _ChildFailedError(text)

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, _ChildFailedError):
            return f"on {self._child.devices} emulated devices, in a process of its own:\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self._original.reportinfo()


class _ChildFailedError(Exception):
    """A test failed in its child process."""


def _name_in_file(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def _environment(devices: int, order: str = IN_ONE_ORDER) -> dict[str, str]:
    # All devices share the few threads of one pool: on a busy machine a collective can wait for longer than the 40
    # seconds after which XLA ends the process.
    patience = "--xla_cpu_collective_call_terminate_timeout_seconds=600"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {patience} {order} --xla_force_host_platform_device_count={devices}"
    # By default XLA's pools have one thread for each device. A program with collectives needs them all at once, and
    # would wait for ever for one that something else has taken.
    threads = {"PJRT_NPROC": str(3 * devices)}
    return os.environ | threads | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def _devices_of_this_process() -> int:
    counts = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(counts[-1]) if counts else 1
