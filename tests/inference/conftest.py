"""Fixtures of the engine's tests."""

from typing import Any, NamedTuple

import pytest

from k2jax.inference import programs
from k2jax.inference.executables import Executables


class Run(NamedTuple):
    """A program that an engine has run: its function's name, what it was given and its static arguments."""

    name: str
    given: tuple
    static: dict[str, Any]
    output: Any


@pytest.fixture
def ran(monkeypatch):
    """The programs that engines have run, in order; what they return is their caller's, who may give it away."""
    runs, run = [], Executables.run

    def recorded(self, function, held, given, *, short=False, **static):
        output = run(self, function, held, given, short=short, **static)
        runs.append(Run(function.__name__, given, static, output))
        return output

    monkeypatch.setattr(Executables, "run", recorded)
    return runs


@pytest.fixture
def through_jit(monkeypatch):
    """Programs are called through ``jax.jit`` and not kept, so that a test can count them."""
    monkeypatch.setattr(programs, "folder_of_programs", lambda: None)
