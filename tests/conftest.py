"""Test settings: the CPU with two threads, and property tests that do not depend on how fast the machine is."""

import atexit
import gc
import os
import shutil
import tempfile

from hypothesis import settings
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Whole runs start many processes with the same program: they share what one of them compiled.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="k2jax-compiled-")
# What compiles here runs for a moment: code that LLVM does not optimise is ready in two thirds of the time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

settings.register_profile("k2jax", deadline=None, derandomize=True)
settings.load_profile("k2jax")


HEAVY = ("train/test_processes", "test_notebooks", "parallel/test_equality", "train/test_run", "inference/test_engine")


def pytest_collection_modifyitems(items):
    """The longest files first: two processes that take files in turn then finish together."""
    place = {f"{name}.py": at for at, name in enumerate(HEAVY)}

    def key(item) -> int:
        file = item.nodeid.split("::")[0]
        return min((at for name, at in place.items() if file.endswith(name)), default=len(place))

    items.sort(key=key)


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """XLA:CPU maps memory for every program; kept to the end, they reach the system's limit of 65,530 mappings."""
    yield
    import jax

    jax.clear_caches()
    gc.collect()
