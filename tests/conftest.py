"""Test settings: the CPU with two threads, and property tests that do not depend on how fast the machine is."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Whole runs start many processes with the same program: they share what one of them compiled.
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="k2jax-compiled-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1"
atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

settings.register_profile("k2jax", deadline=None, derandomize=True)
settings.load_profile("k2jax")
