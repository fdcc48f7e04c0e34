"""Trees of a task's repository with a patch and the tests, and what single files of tests say about them."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Sequence
import secrets
from typing import Any, NamedTuple

from k2jax.agents.environments import repository_program, repository_tests
from k2jax.agents.environments.repository import packed_pytest, run_program
from k2jax.agents.errors import EnvironmentFailedError, VerifierError
from k2jax.agents.sandbox import Sandbox
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.code.verifier import verdict_of

TIMEOUT = 300.0
"""Wall time of one file of tests, and of a build [s]."""
LARGEST_TREE = 64 * MEBI
"""Bytes of a repository with patch and tests, compressed; this process holds it three times."""
MAX_REPORTS = 16 * MEBI
"""Bytes of what one file of tests reports."""
USAGE = 4
"""Exit code of pytest where it does not know its options."""
_COMPOSING = 300.0
"""Wall time of putting a tree together [s]."""


class PatchedTree(NamedTuple):
    """A tree in which tests can run.

    Attributes:
        outcome: ``applied``, with names that were ``dropped`` of the patch and ``hidden`` paths of tests that no build
            sees; or the ``reason`` why the patch is none.
        composed: tar archive of base, patch and tests; empty where the patch is none.
        built: tar archive of what the task's command for building has made of it; empty without one.
    """

    outcome: dict[str, Any]
    composed: bytes = b""
    built: bytes = b""


class FileRun(NamedTuple):
    """What a file of tests has reported.

    Attributes:
        kinds: ``passed``, ``failed``, ``skipped``, ``xfailed``, ``xpassed`` or ``unfinished``, by the node ids of
            tests, in the order of their first reports.
        started: whether pytest was there.
        code: its exit code; 0 where it gave none.
        reason: what there is to say about tests that are missing.
    """

    kinds: dict[str, str]
    started: bool
    code: int
    reason: str


def files_of(task: Task) -> dict[str, list[str]]:
    """The listed tests of each file."""
    files: dict[str, list[str]] = defaultdict(list)
    for key in ("fail_to_pass", "pass_to_pass"):
        for name in task.metadata[key]:
            files[name.partition("::")[0]].append(name)
    return dict(files)


async def make_tree(task: Task, sandbox: Sandbox, patch: str) -> PatchedTree:
    """Base, patch and tests together; without archives where that is not possible because of the patch.

    Raises:
        SandboxError: the sandbox failed.
        VerifierError: base and tests cannot be put together.
    """
    outcome = await composed(task, sandbox, patch)
    if not outcome["applied"]:
        return PatchedTree(outcome)
    tree = await sandbox.read(repository_program.ARCHIVE, LARGEST_TREE)
    if not task.metadata.get("build"):
        return PatchedTree(outcome, tree)
    header = {
        "mode": "build",
        "build": task.metadata["build"],
        "hidden": outcome["hidden"],
        "largest": LARGEST_TREE,
        "timeout": TIMEOUT,
    }
    try:
        await run_program(sandbox, task, header, payload=tree)
        return PatchedTree(outcome, tree, await sandbox.read(repository_tests.ARCHIVE, LARGEST_TREE))
    except EnvironmentFailedError as error:
        return PatchedTree({**outcome, "applied": False, "reason": str(error)[-300:]})


async def composed(task: Task, sandbox: Sandbox, patch: str) -> dict[str, Any]:
    """Leaves an archive of base, patch and tests in a sandbox; see ``PatchedTree.outcome``."""
    texts = {"patch": patch, "reference": task.metadata.get("patch", ""), "test_patch": task.metadata["test_patch"]}
    header = {
        "mode": "compose",
        **{name: base64.b64encode(str(text).encode(errors="replace")).decode() for name, text in texts.items()},
        "files": list(files_of(task)),
        "largest": LARGEST_TREE,
        "timeout": _COMPOSING,
    }
    try:
        result = await run_program(sandbox, task, header)
        return parse_bounded_json(result.stdout)
    except (EnvironmentFailedError, ValueError) as error:
        raise VerifierError(f"base, patch and tests cannot be put together: {error}") from None


async def run_file(task: Task, sandbox: Sandbox, tree: PatchedTree, file: str, edits: Sequence[Any] = ()) -> FileRun:
    """Runs a file of tests with some edits (first byte, end, text) in a new copy of a tree.

    Raises:
        SandboxError: the sandbox failed.
    """
    secret = secrets.token_hex(16)
    header = {
        "mode": "run",
        "file": file,
        "edits": list(edits),
        "secret": secret,
        "size": len(tree.composed),
        "packages": "" if task.image else base64.b64encode(await asyncio.to_thread(packed_pytest)).decode(),
        "plugins": task.metadata.get("plugins", []),
        "timeout": task.limits.test_seconds or TIMEOUT,
    }
    result = await run_program(sandbox, task, header, MAX_REPORTS, payload=tree.composed + tree.built)
    verdict = verdict_of(result.stdout, secret)
    if verdict is None:
        reason = "time" if result.timed_out else f"no verdict: {result.stderr[-200:].decode(errors='replace')}"
        return FileRun({}, True, 0, reason)
    kinds = kinds_of(verdict["reports"])
    started = kinds.pop("", "") != ""
    reason = str(verdict["reason"])[-300:]
    return FileRun(kinds, started, int(verdict["code"]), reason if started else f"pytest cannot be started: {reason}")


def kinds_of(lines: Sequence[str]) -> dict[str, str]:
    """What became of each test, from reports of its phases; what is no report is passed over."""
    reports: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in lines:
        try:
            name, phase, kind = parse_bounded_json(line, 8)
            reports[str(name)].append((str(phase), str(kind)))
        except (ValueError, TypeError):
            continue
    return {name: _kind(phases) for name, phases in reports.items()}


def _kind(reports: Sequence[tuple[str, str]]) -> str:
    """The kind of a test, whose subtests have reports of their own."""
    by_phase = {phase: kind for phase, kind in reports}
    if any(kind == "failed" for _, kind in reports):
        return "failed"
    if not {"setup", "teardown"} <= by_phase.keys():
        return "unfinished"
    if "call" in by_phase:
        return by_phase["call"]
    return by_phase["setup"] if by_phase["setup"] != "passed" else "unfinished"
