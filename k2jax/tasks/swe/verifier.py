"""The verifier of tasks in repositories: base, patch and tests together in a fresh sandbox, a new tree for each file.

Of the agent's patch, tests and their configuration are left out. Every file of tests runs in a process and a tree of
its own, which no code of the agent has touched, and is followed by two tests that must fail: code that makes the test
runner report success makes these pass, and then nothing counts.

The tests import what the agent wrote into their own process. A program that knows this runner can therefore still lie
about single tests; a verifier whose tests must withstand that has them call a process, as ``unit_tests`` does.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Sequence
import random
import re
import secrets
from typing import Any

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.repository import LIMITS, packed_pytest, run_program
from k2jax.agents.environments.repository_program import ARCHIVE
from k2jax.agents.errors import EnvironmentFailedError, VerifierError
from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.code.verifier import verdict_of
from k2jax.trajectory import Reward, Trajectory

TIMEOUT = 300.0
"""Wall time of one file of tests [s]."""
LARGEST_TREE = 64 * MEBI
"""Bytes of a repository with patch and tests, compressed; this process holds it three times."""
MOST_REPORTS = 16 * MEBI
"""Bytes of what one file of tests reports."""
_COMPOSING = 300.0
"""Wall time of putting it together [s]."""
_PHASES = {"setup", "call", "teardown"}


class SWEVerifier(Verifier):
    """1 if all tests of ``fail_to_pass`` and ``pass_to_pass`` pass with the agent's patch, else 0.

    Attributes:
        spec: of its sandboxes.
    """

    def __init__(self):
        self.spec = SandboxSpec(read_only=host_python().read_only, limits=LIMITS)

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the patch that the episode left.

        Raises:
            SandboxError: the sandbox failed.
            VerifierError: base and tests cannot be put together, or the tests of the base cannot be told.
        """
        outcome = trajectory.metadata.get(OUTCOME, {})
        patch = str(outcome.get("patch", ""))
        if trajectory.status != "finished" or not patch:
            return Reward(0.0, info={"patch": bool(patch), "too_large": bool(outcome.get("too_large"))})
        composed = await _composed(task, sandbox, patch)
        if not composed["applied"]:
            return Reward(0.0, info={"patch": True, **composed})
        tree = await sandbox.read(ARCHIVE, LARGEST_TREE)
        wanted = {name: list(task.metadata[name]) for name in ("fail_to_pass", "pass_to_pass")}
        files: dict[str, list[str]] = defaultdict(list)
        for name in (name for names in wanted.values() for name in names):
            files[name.partition("::")[0]].append(name)
        passed: set[str] = set()
        ended: dict[str, str] = {}
        for file, names in files.items():
            good, reason = await self._run(task, sandbox, tree, file, fresh=file == next(iter(files)))
            passed |= good & set(names)
            if reason:
                ended[file] = reason
        parts = {name: sum(test in passed for test in tests) / max(1, len(tests)) for name, tests in wanted.items()}
        value = float(all(test in passed for tests in wanted.values() for test in tests))
        return Reward(value, parts, {"patch": True, "dropped": composed["dropped"], "ended": ended})

    async def _run(self, task: Task, sandbox: Sandbox, tree: bytes, file: str, *, fresh: bool) -> tuple[set[str], str]:
        """The tests of a file that passed, and why none counts, where none does.

        In a sandbox that is not ``fresh``, code of the agent has run, which may be why pytest cannot be started.
        """
        secret = secrets.token_hex(16)
        canaries = _canary_names(task)
        header = {
            "mode": "run",
            "file": file,
            "secret": secret,
            "canaries": _canary_source(canaries),
            "packages": "" if task.image else base64.b64encode(packed_pytest()).decode(),
            "plugins": task.metadata.get("plugins", []),
            "timeout": task.limits.test_seconds or TIMEOUT,
        }
        result = await run_program(sandbox, task, header, MOST_REPORTS, payload=tree)
        verdict = verdict_of(result.stdout, secret)
        if verdict is None:
            return set(), "time" if result.timed_out else f"no verdict: {result.stderr[-200:].decode(errors='replace')}"
        reports = _reports(verdict["reports"])
        if not reports.get("", {}).get("ready"):
            reason = f"pytest cannot be started in the sandbox: {verdict['reason'][-300:]}"
            if fresh:
                raise VerifierError(reason)
            return set(), reason
        held = [reports.get(f"{file}::{name}", {}).get("call") == [False] for name in canaries]
        if not all(held):
            return set(), f"tests that must fail were not reported as failed; {verdict['reason'][-200:]}"
        return {name for name, phases in reports.items() if phases == {phase: [True] for phase in _PHASES}}, ""


async def _composed(task: Task, sandbox: Sandbox, patch: str) -> dict[str, Any]:
    header = {
        "mode": "compose",
        "patch": base64.b64encode(patch.encode(errors="replace")).decode(),
        "test_patch": base64.b64encode(str(task.metadata["test_patch"]).encode()).decode(),
        "largest": LARGEST_TREE,
        "timeout": _COMPOSING,
    }
    try:
        result = await run_program(sandbox, task, header)
        return parse_bounded_json(result.stdout)
    except (EnvironmentFailedError, ValueError) as error:
        raise VerifierError(f"base, patch and tests cannot be put together: {error}") from None


def _reports(lines: Sequence[str]) -> dict[str, dict[str, list[bool]]]:
    """Whether each phase of each test was reported as passed; all reports of a phase, in order."""
    reports: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        try:
            name, phase, passed = parse_bounded_json(line, 8)
            reports[str(name)][str(phase)].append(passed is True)
        except (ValueError, TypeError):
            continue
    return reports


def _canary_names(task: Task) -> list[str]:
    """Names of two tests that look like the task's own."""
    rng = random.Random(secrets.randbits(64))
    words = re.findall(r"[a-z]{3,}", " ".join(task.metadata["fail_to_pass"]).lower().replace("test", " ")) or ["value"]
    return [f"test_{rng.choice(words)}_{rng.choice(words)}_{rng.randrange(10**6)}" for _ in range(2)]


def _canary_source(names: Sequence[str]) -> str:
    """Two tests that must fail: one by an assertion, one by an error."""
    first, second = names
    left, right = random.Random(secrets.randbits(64)).sample(range(10**6), 2)
    return f"\n\ndef {first}():\n    assert {left} == {right}\n\n\ndef {second}():\n    raise ValueError({left})\n"
