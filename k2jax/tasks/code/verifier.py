"""The verifier of programming tasks: unit tests in a fresh sandbox that has never held them."""

from __future__ import annotations

import json
from pathlib import Path
import re
import secrets

from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.code import judge_program as code_judge
from k2jax.trajectory import Reward, Trajectory

TIMEOUT = 10.0
"""Wall time of all tests of a task together [s]."""
LONGEST = 1 << 20
"""Characters of a program; a longer one fails."""
TEMPLATE = "template"
"""Key of a task's metadata: a program with ``{}`` where the whole answer stands; without it the answer has blocks."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_JUDGE = Path(code_judge.__file__).read_text(encoding="utf-8")


class UnitTests(Verifier):
    """1 if all tests pass, else 0; a program that hangs, exits or floods fails.

    Attributes:
        spec: of its sandboxes: with this program's own Python, where the task has no image.
    """

    def __init__(self):
        python = host_python()
        self.spec = SandboxSpec(read_only=python.read_only)
        self._python = python.executable

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the last block of code of the answer, or of the answer in the task's template.

        Raises:
            SandboxError: the sandbox failed.
        """
        program = _program(task, trajectory.answer)
        if trajectory.status != "finished" or program is None or len(program) > LONGEST:
            return Reward(0.0, info={"block": program is not None})
        python = "python3" if task.image else self._python
        secret, tests = secrets.token_hex(16), list(task.metadata["tests"])
        request = {"tests": tests, "setup": task.metadata.get("setup", ""), "secret": secret}
        await sandbox.write("/work/solution.py", program.encode(errors="replace"))
        result = await sandbox.exec(
            [python, "-I", "-S", "-c", _JUDGE],
            stdin=json.dumps(request).encode(),
            timeout=task.limits.test_seconds or TIMEOUT,
        )
        verdict = verdict_of(result.stdout, secret)
        if verdict is None:
            ended = "time" if result.timed_out else "memory" if result.out_of_memory else f"exit code {result.code}"
            return Reward(0.0, info={"block": True, "tests": len(tests), "ended_by": ended})
        failed = int(verdict["failed"])
        info = {"block": True, "tests": len(tests), "failed": failed, "reasons": verdict["reasons"]}
        return Reward(float(failed == 0), {"passed": 1 - failed / len(tests)}, info)


def _program(task: Task, answer: str) -> str | None:
    """What is to be run of an answer, or None where it has no program."""
    if (template := task.metadata.get(TEMPLATE)) is not None:
        return template.replace("{}", answer)
    blocks = _BLOCK.findall(answer)
    return blocks[-1] if blocks else None


def verdict_of(output: bytes, secret: str) -> dict | None:
    """The judge's last line as it left a sandbox, or None where it does not carry the secret of the call."""
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        verdict = parse_bounded_json(lines[-1])
        return verdict if secrets.compare_digest(verdict["secret"], secret) else None
    except (IndexError, ValueError, TypeError, KeyError):
        return None
