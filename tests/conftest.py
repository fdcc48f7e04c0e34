"""Test settings: the CPU with two threads, and property tests that do not depend on how fast the machine is."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from hypothesis import settings

settings.register_profile("k2jax", deadline=None, derandomize=True)
settings.load_profile("k2jax")
