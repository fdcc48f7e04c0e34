"""Fixtures of the engine's tests."""

import pytest

from k2jax.inference import programs


@pytest.fixture
def through_jit(monkeypatch):
    """Programs are called through ``jax.jit`` and not kept, so that a test can stand in for them or count them."""
    monkeypatch.setattr(programs, "folder_of_programs", lambda: None)
