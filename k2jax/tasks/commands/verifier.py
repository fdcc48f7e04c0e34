"""The verifier of small terminal tasks: a shell's test over the files that an agent left, in a fresh sandbox."""

from __future__ import annotations

from k2jax.agents.environment import OUTCOME
from k2jax.agents.environments.files import OUTPUTS, plain_files
from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.task import Task
from k2jax.agents.verifier import Verifier
from k2jax.trajectory import Reward, Trajectory

TIMEOUT = 10.0
"""Wall time of a test [s]."""


class ShellTest(Verifier):
    """1 if the task's test, a command of ``/bin/sh``, ends with code 0, else 0.

    It runs over the task's files as they were at first and the named texts that the agent left, and is to run none of
    these: nothing of the agent's is a program there. The agent's sandbox never holds the test.

    Attributes:
        spec: of its sandboxes.
    """

    def __init__(self):
        self.spec = SandboxSpec()

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox) -> Reward:
        """The reward of the files that the episode left.

        Raises:
            SandboxError: the sandbox failed.
        """
        left = trajectory.metadata.get(OUTCOME, {}).get("texts", {})
        missing = [path for path in task.metadata[OUTPUTS] if path not in left]
        if missing:
            return Reward(0.0, info={"missing": missing})
        for path, content in (
            plain_files(task) | {path: text.encode(errors="replace") for path, text in left.items()}
        ).items():
            await sandbox.write(f"/work/{path}", content)
        result = await sandbox.exec(
            ["/bin/sh", "-c", task.metadata["test"]], timeout=task.limits.test_seconds or TIMEOUT
        )
        return Reward(float(result.code == 0), info={"missing": [], "code": result.code})
