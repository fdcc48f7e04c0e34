"""The environment of tasks that are judged where the agent worked: on an image, by a script that comes afterwards.

The form is Harbor's: at the end of a step its tests are put at ``/tests``, ``/tests/test.sh`` runs, and writes
``/logs/verifier/reward.json`` (named numbers) or ``reward.txt`` (one number); its exit code says nothing. The script
runs on what the agent has left, which may have changed any program of the image: a task that minds needs a verifier of
its own, in a sandbox of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
import contextlib
import math
import re
from typing import Any

from k2jax.agents.environment import Message, Observation, Step
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.sandbox import HostPaths, Limits, Sandbox, SandboxError, SandboxSpec
from k2jax.agents.sandbox.types import MEBI
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.files.bounded_json import parse_bounded_json

CONTAINER, STEPS, STRATEGY = "container", "steps", "strategy"
"""Keys of a task's metadata: user, workdir and env of its sandbox; its steps; how their rewards are joined."""
LIMITS = Limits(memory=2048 * MEBI, processes=256, disk=1024 * MEBI, files=200_000, open_files=1024)
"""Of the sandboxes, where tasks set no others."""
_LOGS = "/logs/verifier"
_FRESH = f"rm -rf /tests {_LOGS} && mkdir -p /tests {_LOGS} /logs/agent /logs/artifacts"
_JUDGE = "chmod -R u+rwx /tests && exec /tests/test.sh"
_PREPARING = 60.0
_MOST_REWARDS = 1 << 16
_LARGEST = 1_000_000
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_KEPT_OUTPUT = 1000
"""Characters of the end of a script's output that are kept where it gave no reward."""


class ContainerEnvironment(ToolEnvironment):
    """Tools in a sandbox on the task's image, one instruction after the other, each judged when the agent is done.

    The outcome is ``{"graded": [{"reward": number, "rewards": {name: number}, "reason": text}, ...]}``, one for each
    step that was reached. A black box works on the first step alone.
    """

    needs_sandbox = True

    def spec(self, task: Task, read_only: HostPaths) -> SandboxSpec:
        """On the image, as the user and in the folder that the task names.

        Raises:
            UserError: the task has no image.
        """
        if not task.image:
            raise UserError(f"the task {task.id!r} has no image, on which its environment 'container' works")
        container = task.metadata.get(CONTAINER, {})
        return SandboxSpec(
            image=task.image,
            read_only=read_only,
            limits=LIMITS,
            env=container.get("env", {}),
            user=container.get("user", ""),
            workdir=container.get("workdir", ""),
        )

    async def prepare(self, task: Task, sandbox: Sandbox | None) -> None:
        """Begins with the first step."""
        self._graded: list[dict[str, Any]] = []

    async def step(self, action: Message) -> Step:
        """The results of calls; else the next step's instruction, or the end. See ``ToolEnvironment.step``."""
        if action.get("tool_calls"):
            return await super().step(action)
        self._steps += 1
        steps = self._task.metadata[STEPS]
        graded = await self._grade()
        minimum = steps[len(self._graded) - 1]["min_reward"]
        if len(self._graded) == len(steps) or (minimum is not None and graded["reward"] < minimum):
            return Step(Observation(), terminated=True, info={"graded": self._graded})
        for toolset in self._toolsets:
            await toolset.open(self._workplace)
        said = steps[len(self._graded)]["instruction"]
        return Step(Observation(({"role": "user", "content": said},)))

    async def outcome(self, task: Task, sandbox: Sandbox | None) -> Mapping[str, Any]:
        """What an agent that has ended, or was ended, has left of its present step."""
        if len(self._graded) < len(task.metadata[STEPS]):
            await self._grade()
        return {"graded": self._graded}

    async def _grade(self) -> dict[str, Any]:
        """Judges the present step, with the toolsets closed: nothing of the agent runs beside the script.

        Raises:
            SandboxError: the sandbox failed; what the agent has left is not to blame.
        """
        for toolset in self._toolsets:
            await toolset.close()
        step = self._task.metadata[STEPS][len(self._graded)]
        rewards, reason = {}, await self._place(step["tests"])
        if not reason:
            result = await self._sandbox.exec(
                ["/bin/sh", "-c", _JUDGE], env=step["env"], timeout=step["seconds"], output_limit=MEBI
            )
            output = (result.stderr or result.stdout)[-_KEPT_OUTPUT:].decode(errors="replace")
            ended = "the tests took too long" if result.timed_out else f"exit code {result.code}: {output}"
            rewards, problem = await self._rewards()
            reason = f"{problem}; {ended}" if problem else ""
        if len(self._graded) + 1 < len(self._task.metadata[STEPS]):  # the agent goes on, and is shown no judge
            await self._sandbox.exec(["/bin/sh", "-c", f"rm -rf /tests {_LOGS}"], cwd="/", timeout=_PREPARING)
        self._graded.append({"reward": scalar_reward(rewards), "rewards": rewards, "reason": reason})
        return self._graded[-1]

    async def _place(self, tests: Mapping[str, str]) -> str:
        """Puts the tests into the sandbox; returns why that failed, which is the agent's doing, or an empty text."""
        result = await self._sandbox.exec(["/bin/sh", "-c", _FRESH], cwd="/", timeout=_PREPARING)
        if result.code:
            return f"the folder of the tests cannot be made: {result.stderr[-200:].decode(errors='replace')}"
        try:
            if await self._sandbox.list(_LOGS):  # whatever the agent has put in the place of the shell
                return f"{_LOGS} cannot be emptied"
            for path, data in tests.items():
                await self._sandbox.write(f"/tests/{path}", base64.b64decode(data))
        except SandboxError as error:
            await self._sandbox.exec(["/bin/sh", "-c", ":"], cwd="/")  # is it the sandbox that is gone?
            return f"the tests cannot be written: {error}"
        return ""

    async def _rewards(self) -> tuple[dict[str, float], str]:
        """The named rewards, and why there are none."""
        found: dict[str, bytes] = {}
        for name in _READERS:
            with contextlib.suppress(SandboxError):
                found[name] = await self._sandbox.read(f"{_LOGS}/{name}", _MOST_REWARDS + 1)
        if len(found) != 1:  # the script writes one, so the other would be of what it runs
            return {}, "there are two rewards" if found else "there is no reward"
        [(name, data)] = found.items()
        try:
            return _READERS[name](data), ""
        except (ValueError, OverflowError) as error:
            return {}, f"{name} cannot be read: {error}"


def scalar_reward(rewards: Mapping[str, float]) -> float:
    """One number of named rewards: that of the name ``reward``, else their mean; 0 for none."""
    if "reward" in rewards:
        return rewards["reward"]
    return sum(rewards.values()) / len(rewards) if rewards else 0.0


def _named(data: bytes) -> dict[str, float]:
    if len(data) > _MOST_REWARDS:
        raise ValueError("it is too long")
    values = parse_bounded_json(data)
    if not isinstance(values, dict):
        values = {"reward": values}
    return {str(name): _number(value) for name, value in values.items() if value is not None}


def _single(data: bytes) -> dict[str, float]:
    text = data.decode(errors="replace").strip()
    if not _DECIMAL.fullmatch(text):
        raise ValueError("it is no number")
    return {"reward": _number(float(text))}


def _number(value: Any) -> float:
    if type(value) not in (int, float, bool) or not math.isfinite(value) or abs(value) > _LARGEST:
        raise ValueError(f"its values are no numbers of a size up to {_LARGEST:,}")
    return float(value)


_READERS = {"reward.json": _named, "reward.txt": _single}
