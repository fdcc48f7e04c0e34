"""The verifier of terminal tasks: the task's test script over what the agent left, in a fresh sandbox."""

from __future__ import annotations

import json
from pathlib import Path
import secrets

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.files import isolated_python
from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.sandbox.interpreter import host_python
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.tasks.code.verifier import verdict_of
from k2jax.tasks.terminal import test_program as terminal_program
from k2jax.trajectory import Reward, Trajectory

TIMEOUT = 60.0
"""Wall time of a test script, where its task sets none [s]."""
_PROGRAM = Path(terminal_program.__file__).read_text(encoding="utf-8")


class TerminalVerifier(Verifier):
    """1 if the test script ends without an exception, else 0. The agent's sandbox never holds the script.

    Attributes:
        spec: of its sandboxes.
    """

    def __init__(self):
        self.spec = SandboxSpec(read_only=host_python().read_only)

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the files that the episode left.

        Raises:
            SandboxError: the sandbox failed.
        """
        outcome = trajectory.metadata.get(OUTCOME, {})
        if not outcome.get("archive"):
            return Reward(0.0, info={"files": False, "reason": outcome.get("reason", "")})
        left_out = {"left_out": outcome["left_out"]} if outcome.get("left_out") else {}
        secret = secrets.token_hex(16)
        request = {"archive": outcome["archive"], "test": task.metadata["test"], "secret": secret}
        result = await sandbox.exec(
            [*isolated_python(task), "-c", _PROGRAM],
            stdin=json.dumps(request).encode(),
            timeout=task.limits.test_seconds or TIMEOUT,
        )
        verdict = verdict_of(result.stdout, secret)
        if verdict is None:
            return Reward(
                0.0, info={"files": True, "reason": "time" if result.timed_out else f"exit {result.code}"} | left_out
            )
        return Reward(float(not verdict["reason"]), info={"files": True, "reason": verdict["reason"]} | left_out)
