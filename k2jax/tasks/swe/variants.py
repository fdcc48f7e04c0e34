"""Runs of a task's tests in which some are changed so that they must fail, and what counts as a test that passes.

Tests import the code that they judge, so a program can lie about them in every report. It cannot know which tests of a
run are changed: files, names and form are the same, and each run draws its own. A run of the reference patch tells what
must become of each test; a patch whose tests pass, and whose controls do not end as the reference's, has lied or
passes by chance, and is worth nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from k2jax.agents.task import Task

_EXPECTED_FAILURES = ("xfailed", "xpassed")


class Variant(NamedTuple):
    """A run of a file with some changed tests.

    Attributes:
        file: its path.
        parts: what is replaced in it: first byte, end and new text.
        names: node id in this run by the one in the list of tests, where it is another one.
        failing: listed tests that must not pass in this run.
        passing: listed tests that must.
    """

    file: str
    parts: tuple[Any, ...]
    names: Mapping[str, str]
    failing: Collection[str]
    passing: Collection[str]


class Controls(NamedTuple):
    """What must become of a task's tests.

    Attributes:
        kinds: of the listed tests with the reference patch, or on the base where the task has none.
        variants: runs with controls.
        uncontrolled: tests of ``fail_to_pass`` that no run changes.
    """

    kinds: Mapping[str, str]
    variants: tuple[Variant, ...]
    uncontrolled: tuple[str, ...]


def counts(task: Task, controls: Controls, test: str, kind: str | None) -> bool:
    """Whether a test of a kind is one that has passed.

    An expected failure does where it is one with the reference patch, and so does a test of ``pass_to_pass`` that is
    skipped with it, as on machines that lack what it needs.
    """
    reference = controls.kinds.get(test)
    if kind in _EXPECTED_FAILURES:
        return reference in _EXPECTED_FAILURES
    if kind == "skipped":
        return reference == kind and test not in task.metadata["fail_to_pass"]
    return kind == "passed"
