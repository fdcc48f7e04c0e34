"""Test settings: the CPU, one process per core, and property tests that do not depend on how fast the machine is."""

import atexit
import gc
import os
from pathlib import Path
import shutil
import sys
import tempfile
import weakref

from hypothesis import settings
import pytest

from tests import budget, emulated

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests run their programs for a moment and compile them for minutes. XLA's older emitters need a quarter of the
# compilation time of its fusion emitters, code that LLVM does not optimise two thirds, and a program that is not split
# for several threads an eighth less.
QUICK = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
if QUICK not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
# All processes of a session (workers of xdist and the programs that tests start) share compiled programs.
CACHE = "K2JAX_TEST_COMPILATION_CACHE"
if CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="k2jax-compiled-")
    atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[CACHE]
# Reading even a small program takes a fifth of the time of compiling it, and writing it next to nothing.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# Programs that tests start read k2jax compiled to bytecode, which each of them would otherwise compile anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Imports and traces make millions of objects and hardly any garbage: looking for it took half of the collection's time
# and a tenth of the tests'.
gc.disable()
OBJECTS_BETWEEN_COLLECTIONS = 20_000

settings.register_profile("k2jax", deadline=None, derandomize=True)
settings.load_profile("k2jax")


HEAVY = ("train/test_processes", "test_notebooks", "parallel/test_equality", "train/test_run", "inference/test_engine")
"""The files that take longest, the longest first."""

SLOW_SECONDS = 3600
"""Time that a test marked ``slow`` may take; pyproject.toml has that of the others."""


def pytest_addoption(parser, pluginmanager):
    """Without xdist (``-p no:xdist``) its options, which pyproject.toml sets, have no effect."""
    if not pluginmanager.hasplugin("xdist"):
        group = parser.getgroup("xdist", "options of pytest-xdist, which is not loaded")
        group.addoption("--numprocesses")
        group.addoption("--dist")
        group.addoption("--max-worker-restart")
        group.addoption("--no-loadscope-reorder", action="store_true")


def pytest_configure(config):
    config.pluginmanager.register(budget.Recorder())


def pytest_unconfigure(config):
    """A worker of xdist has nothing left to say: to free its thousands of programs one by one takes it seconds."""
    if hasattr(config, "workerinput"):
        atexit.register(_leave)


def _leave():
    """Runs before what others have registered: temporary folders are removed, and the process ends at once."""
    weakref.finalize._exitfunc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One process per core; none besides this one for a single file, whose tests stay together anyway."""
    selected = {argument.split("::")[0] for argument in config.args}
    if len(selected) == 1 and Path(selected.pop()).is_file():
        return 0
    processes = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")  # as in xdist itself
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(processes) if processes else cores


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest files come first, so that processes that take files in turn finish together."""
    rank = {f"{name}.py": index for index, name in enumerate(HEAVY)}

    def key(item) -> int:
        file = item.nodeid.split("::")[0]
        return min((index for name, index in rank.items() if file.endswith(name)), default=len(rank))

    items.sort(key=key)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    emulated.delegate(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """What has been imported stays; from here on garbage is collected, more seldom than Python's 700 objects."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, 10, 10)
    gc.enable()


MOST_MAPPINGS = 20_000
"""Memory mappings above which compiled programs are forgotten: the system's limit is 65,530."""


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """XLA:CPU maps memory for every program. What is kept spares later files the same small programs."""
    yield
    if "jax" in sys.modules and _mappings() > MOST_MAPPINGS:
        sys.modules["jax"].clear_caches()
        gc.collect()


def _mappings() -> int:
    """Of this process, where the system tells; otherwise as many as there may be."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else MOST_MAPPINGS + 1
