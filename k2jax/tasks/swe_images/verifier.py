"""The verifier of rows on images: base, patch and tests together in a fresh sandbox, then the row's own test command.

The tests run beside the agent's code and say on one output what became of them, as in the harness of SWE-bench: code
that prints the lines of a test runner is believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
import secrets
from typing import Any, NamedTuple

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments import image_scripts
from k2jax.agents.environments.image_repository import LIMITS, begin, find_repository, reason_of, run_script
from k2jax.agents.errors import EnvironmentFailedError, VerifierError
from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.tasks.swe_images.log_parsers import LARGEST_LOG, read_log
from k2jax.tasks.swe_images.row_commands import files_of_tests, marked_log, script_of
from k2jax.trajectory import Reward, Trajectory

TIMEOUT = 1800.0
"""Wall time of all commands of a row where its task says none [s]."""
_APPLYING = 120.0
_NO_PATCH = 3
_MOST_CHANGES = 8 * MEBI
_SHOWN = 20
"""Names of tests and paths in a reward's ``info``."""
_LONGEST_SHOWN = 200
_INDEX = "/tmp/k2jax-index"
_SCRIPT = "/tmp/k2jax-tests"
_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash "$0"; else exec sh "$0"; fi'
_PASSING = {"fail_to_pass": ("passed", "xfailed"), "pass_to_pass": ("passed", "xfailed", "skipped")}


class _Change(NamedTuple):
    """How a path differs between two trees: mode and object before and after."""

    before: bytes
    after: bytes


class SWEImageVerifier(Verifier):
    """1 if all tests of ``fail_to_pass`` and ``pass_to_pass`` pass with the agent's patch, else 0.

    A test counts that passed or failed as expected; one of ``pass_to_pass`` may have been skipped, too, as in
    SWE-bench's harness. Parts are the fractions of both lists. The ``info`` has ``dropped`` (what of the patch was left
    out: files that the test patch or a listed test names), ``failed`` and ``missing`` (tests, twenty of each), and
    ``ended`` where the commands did not come to their end.

    Attributes:
        spec: of its sandboxes.
    """

    spec = SandboxSpec(limits=LIMITS)

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the patch that the episode left.

        Raises:
            SandboxError: the sandbox failed.
            VerifierError: the image has no such repository, or the test patch does not fit it.
        """
        outcome = trajectory.metadata.get(OUTCOME, {})
        patch = str(outcome.get("patch", ""))
        if not patch.strip():
            info = {"patch": False, "too_large": bool(outcome.get("too_large")), "error": str(outcome.get("error", ""))}
            return Reward(0.0, info=info)
        try:
            place = await find_repository(task, sandbox, str(outcome.get("folder", "")))
            tree = (await begin(task, sandbox, place.folder)).tree
        except EnvironmentFailedError as error:
            raise VerifierError(str(error)) from None
        dropped = await compose(task, sandbox, place.folder, tree, patch)
        if isinstance(dropped, Reward):
            return dropped
        ended, reason = await run_tests(task, sandbox, place.folder, place.env)
        lists = {name: task.metadata[name] for name in _PASSING}
        passed = {name: [test for test in tests if ended.get(test) in _PASSING[name]] for name, tests in lists.items()}
        info = {
            "patch": True,
            "dropped": dropped[:_SHOWN],
            "failed": _shown(test for name, tests in lists.items() for test in tests if ended.get(test) == "failed"),
            "missing": _shown(test for tests in lists.values() for test in tests if test not in ended),
            "ended": reason,
        }
        parts = {name: len(passed[name]) / len(tests) for name, tests in lists.items() if tests}
        return Reward(float(all(part == 1.0 for part in parts.values())), parts, info)


async def compose(task: Task, sandbox: Sandbox, folder: str, tree: str, patch: str) -> list[str] | Reward:
    """Puts a patch and the tests into the work tree.

    Args:
        task: with a test patch.
        sandbox: where nothing of the agent has run.
        folder: of the repository.
        tree: what the agent has begun with.
        patch: of the agent.

    Returns:
        What of the patch was left out; the reward of a patch that is none.

    Raises:
        SandboxError: the sandbox failed.
        VerifierError: the test patch does not fit, or the work tree cannot be written.
    """
    words = (folder, tree)
    result = await _applied(sandbox, words, "tests", task.metadata["test_patch"])
    if result.code or result.truncated:
        raise VerifierError(f"the test patch of the task {task.id!r} does not fit its base: {reason_of(result)}")
    tests = _changes(result.stdout)[1]
    result = await _applied(sandbox, words, "agent", patch)
    if result.code == _NO_PATCH or result.truncated or result.timed_out or result.out_of_memory:
        return Reward(0.0, info={"patch": True, "applied": False, "reason": reason_of(result)})
    if result.code:
        raise VerifierError(f"the patch of the task {task.id!r} cannot be applied: {reason_of(result)}")
    agent_tree, agent = _changes(result.stdout)
    entries, dropped = _joined(tests, agent, guarded(task))
    words = (folder, agent_tree)
    result = await run_script(sandbox, image_scripts.CHECK_OUT, words, entries, _APPLYING)
    if result.code:
        raise VerifierError(f"patch and tests of the task {task.id!r} cannot be put together: {reason_of(result)}")
    return dropped


def guarded(task: Task) -> set[bytes]:
    """Files of listed tests that the reference patch does not change; a patch of an agent does not reach them."""
    names = (*task.metadata["fail_to_pass"], *task.metadata["pass_to_pass"])
    reference = task.metadata["patch"]
    return {file.encode(errors="replace") for file in files_of_tests(names) if f" b/{file}\n" not in reference}


async def run_tests(task: Task, sandbox: Sandbox, folder: str, env: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """How the listed tests have ended, and why the commands did not come to their end; empty where they did.

    Raises:
        SandboxError: the sandbox failed.
    """
    secret = secrets.token_hex(16)
    await sandbox.write(_SCRIPT, script_of(task.metadata["commands"], secret).encode())
    result = await sandbox.exec(
        ["/bin/sh", "-c", _SHELL, _SCRIPT],
        cwd=folder,
        env=env,
        timeout=task.limits.test_seconds or TIMEOUT,
        output_limit=LARGEST_LOG + MEBI,
    )
    log = marked_log(result.stdout, secret, task.metadata["marked"])
    if log is None or len(log) > LARGEST_LOG:
        too_long = f"they have printed more than {LARGEST_LOG:,} bytes"
        reason = too_long if result.truncated or log else reason_of(result)
        return {}, f"{reason}: {result.stdout[-_LONGEST_SHOWN:].decode(errors='replace')}"
    wanted = [*task.metadata["fail_to_pass"], *task.metadata["pass_to_pass"]]
    return await asyncio.to_thread(read_log, task.metadata["parser"], log, wanted), ""


async def _applied(sandbox: Sandbox, words: tuple[str, str], name: str, patch: str) -> Any:
    data = patch.encode(errors="replace") if patch.strip() else b""
    words = (*words, f"{_INDEX}-{name}")
    return await run_script(sandbox, image_scripts.APPLY, words, data, _APPLYING, _MOST_CHANGES)


def _changes(output: bytes) -> tuple[str, dict[bytes, _Change]]:
    """A tree and how another one differs from it, of the output of ``APPLY``."""
    tree, *parts = output.split(b"\0")[:-1]
    changes = {}
    for entry, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old, new, _ = entry.removeprefix(b":").split(b" ")
        changes[path] = _Change(old_mode + b" " + old, new_mode + b" " + new)
    return tree.decode(), changes


def _joined(
    tests: Mapping[bytes, _Change], agent: Mapping[bytes, _Change], files: set[bytes]
) -> tuple[bytes, list[str]]:
    """Entries that make the tests' of an agent's tree, and paths of what is left out of that.

    What the tests change is as they make it, and files of tests are as they were.
    """
    entries = {path: change.after for path, change in tests.items()}
    entries |= {path: change.before for path, change in agent.items() if path in files and path not in tests}
    dropped = [path for path in sorted(agent) if path in entries and agent[path].after != entries[path]]
    lines = b"".join(entry + b"\t" + path + b"\0" for path, entry in entries.items())
    return lines, [path.decode(errors="replace")[:_LONGEST_SHOWN] for path in dropped]


def _shown(names: Iterable[str]) -> list[str]:
    return [name[:_LONGEST_SHOWN] for name, _ in zip(names, range(_SHOWN), strict=False)]
