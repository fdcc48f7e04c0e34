"""Controls of a task, made with its reference patch: what is changed in its tests, and what must become of each test.

Without a reference patch the base takes its place. Tests of ``fail_to_pass`` fail on it, changed or not, so that only
such changes are made then as a test that passes always comes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import math
from pathlib import Path
import secrets
from typing import Any

from k2jax.agents.environments.files import isolated_python
from k2jax.agents.errors import VerifierError
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.swe import literals, mutants
from k2jax.tasks.swe.runs import TIMEOUT, USAGE, FileRun, PatchedTree, files_of, make_tree, run_file
from k2jax.tasks.swe.variants import Controls, Variant, counts

BITS = 5
"""Bits that a program would have to guess: tests that are changed or not, in so many runs of a file."""
FEWEST_RUNS = 2
"""Runs of a file with controls, however many tests it has."""
_SHOWN = 20
"""Names of tests in an error."""
_PROGRAM = (
    f"import sys, types\nmodule = types.ModuleType({literals.__name__!r})\nsys.modules[module.__name__] = module\n"
    f"exec({Path(literals.__file__).read_text(encoding='utf-8')!r}, module.__dict__)\n"
    + Path(mutants.__file__).read_text(encoding="utf-8")
)


def runs_for(tests: int) -> int:
    """How many runs a file takes that has so many changes of tests of ``fail_to_pass``."""
    return max(FEWEST_RUNS, math.ceil(BITS / tests) if tests else 0)


def pattern(count: int) -> int:
    """In which of so many runs a test is changed, as bits: in one at least."""
    return 1 + secrets.randbelow(2**count - 1)


async def make_controls(task: Task, sandbox: Sandbox) -> Controls:
    """The controls of a task, made in a sandbox in which nothing of the agent has run.

    Raises:
        SandboxError: the sandbox failed.
        VerifierError: base and tests cannot be put together, pytest cannot be started, or listed tests do not pass
            with the reference patch.
    """
    tree = await make_tree(task, sandbox, str(task.metadata.get("patch", "")))
    if not tree.outcome["applied"]:
        raise VerifierError(f"the reference patch of the task {task.id!r} is none: {tree.outcome['reason']}")
    files = files_of(task)
    runs = {file: await run_file(task, sandbox, tree, file) for file in files}
    controls = Controls({test: runs[file].kinds.get(test, "missing") for file in files for test in files[file]}, (), ())
    _check(task, controls, runs)
    variants: list[Variant] = []
    for file, tests in files.items():
        edits = await _edits(task, sandbox, tree, file)
        for chosen, number in _chosen(task, file, edits):
            parts = tuple(part for edit in chosen for part in edit["changes"][number % len(edit["changes"])])
            run = await run_file(task, sandbox, tree, file, parts) if chosen else runs[file]
            names = _renamed(list(runs[file].kinds), list(run.kinds))
            failing, passing = _expected(task, controls, tests, chosen, run, names)
            if failing or passing:  # what does not end, say, has neither
                variants.append(Variant(file, parts, names, failing, passing))
    held = {test for variant in variants for test in variant.failing}
    free = tuple(test for test in task.metadata["fail_to_pass"] if test not in held)
    return controls._replace(variants=tuple(variants), uncontrolled=free)


def _check(task: Task, controls: Controls, runs: Mapping[str, FileRun]) -> None:
    """Raises VerifierError where the tests cannot run, or do not pass with the reference patch."""
    for file, run in runs.items():
        if not run.started:
            raise VerifierError(f"the tests of the task {task.id!r} cannot run: {run.reason}")
        if run.code == USAGE:
            raise VerifierError(
                f"pytest of the task {task.id!r} refuses {file} or an option of its configuration, which may need a "
                f"plugin: {run.reason}"
            )
    failed = [test for test, kind in controls.kinds.items() if not counts(task, controls, test, kind)]
    if task.metadata.get("patch") and failed:
        shown = ", ".join(f"{test} ({controls.kinds[test]})" for test in failed[:_SHOWN])
        reasons = "; ".join(run.reason for run in runs.values() if run.reason)
        what = f"{len(failed)} of the task's tests do not pass with its reference patch"
        raise VerifierError(f"{task.id}: {what}: {shown}. {reasons}")


def _chosen(task: Task, file: str, edits: Sequence[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], int]]:
    """The edits of each run of a file, drawn at random, and the number of the run."""
    if not edits:
        return []
    hidden = {_function(test) for test in task.metadata["fail_to_pass"]}
    count = runs_for(sum(any(f"{file}::{name}" in hidden for name in edit["tests"]) for edit in edits))
    patterns = [pattern(count) for _ in edits]
    pairs = list(zip(edits, patterns, strict=True))
    return [([edit for edit, bits in pairs if bits >> number & 1], number) for number in range(count)]


def _expected(
    task: Task,
    controls: Controls,
    tests: Sequence[str],
    chosen: Sequence[Mapping[str, Any]],
    run: FileRun,
    names: Mapping[str, str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tests of a file that must fail under some edits, and those that must pass."""
    changed = {name: edit["row"] for edit in chosen for name in edit["tests"]}
    methods = {name.rpartition("::")[2] for name in changed}  # which other classes may inherit
    failing, passing = [], []
    for test in tests:
        kind, function = run.kinds.get(names.get(test, test), "missing"), _function(test).partition("::")[2]
        passes = counts(task, controls, test, kind)
        unknown = not task.metadata.get("patch") and not counts(task, controls, test, controls.kinds[test])
        another_row = changed.get(function, False) and test not in names
        if function not in changed:
            if passes or (unknown and function.rpartition("::")[2] not in methods):
                passing.append(test)
        elif unknown:
            failing += [] if another_row else [test]  # it fails on the base, and may pass there once it is changed
        elif passes:
            passing += [test] if another_row else []
        elif kind == "failed":
            failing.append(test)
    return tuple(failing), tuple(passing)


def _renamed(plain: list[str], other: list[str]) -> dict[str, str]:
    """New node ids by old ones where parameters, and with them the ids, have changed."""
    if len(plain) != len(other):
        return {}
    pairs = {old: new for old, new in zip(plain, other, strict=True) if old != new}
    return {} if any(old in other or _function(old) != _function(new) for old, new in pairs.items()) else pairs


def _function(test: str) -> str:
    """The node id of a test without its parameters."""
    return test.partition("[")[0]


async def _edits(task: Task, sandbox: Sandbox, tree: PatchedTree, file: str) -> list[dict[str, Any]]:
    """What can be changed in a file, see ``mutants``; what may never be run counts where a reference shows it."""
    names = list(dict.fromkeys(_function(test).partition("::")[2] for test in files_of(task)[file]))
    result = await sandbox.exec(
        [*isolated_python(task), "-c", _PROGRAM],
        stdin=json.dumps({"file": file, "tests": names}).encode() + b"\n" + tree.composed,
        timeout=TIMEOUT,
        output_limit=16 * MEBI,
    )
    try:
        edits = parse_bounded_json(result.stdout)
    except ValueError:
        reason = result.stderr[-300:].decode(errors="replace")
        raise VerifierError(f"no controls of {file} in the task {task.id!r}: {reason}") from None
    return [edit for edit in edits if edit["always"] or task.metadata.get("patch")]
