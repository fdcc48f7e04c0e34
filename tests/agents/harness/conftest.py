"""An engine with a tiny model of bytes."""

import pytest

from k2jax.config import replace_keys
from tests.agents.harness.programs import BYTES
from tests.inference.tiny import GQA, engine


@pytest.fixture(scope="session")
def tiny_engine():
    """One for all tests, because compiling takes longest."""
    return engine(replace_keys(GQA, {"vocab": BYTES.vocab_size}), max_length=512, page_size=128, slots=2)
