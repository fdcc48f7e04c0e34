"""Verdicts of function verifiers from processes that can be killed: nothing that a verifier does can stop a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
import itertools
import os
import queue
import socket
import subprocess
import sys
from typing import Any

from k2jax.agents.errors import VerifierError
from k2jax.agents.registry import verifiers
from k2jax.agents.task import Task
from k2jax.agents.verifier import FAILED
from k2jax.agents.verifier_pool import verifier_messages as frames
from k2jax.agents.verifier_pool.verifier_messages import ANSWER, BUSY, UNCLEAR, Judged
from k2jax.errors import UserError
from k2jax.files.child_environment import child_environment
from k2jax.trajectory import Reward, Trajectory

_SUPERVISOR = "k2jax.agents.verifier_pool.supervisor"
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class VerifierPool:
    """Processes that run function verifiers ``(task, answer) -> Reward`` with a time limit.

    A verifier that loops, floods its output, forks, allocates without bound, exits, raises, or returns what is no
    finite number costs its time limit at most: its process and all descendants are killed, and it is tried again in a
    new one. Verifiers are code that the user trusts, fed with answers that nobody does; code from a model belongs into
    a sandbox.

    Where a verifier declares that it judges every answer (``k2jax.agents.verifier.judges_every_answer``), and fails on
    an answer but not on its control answer to the same task, the answer is worth 0. Its limit is then processor time.

    The pool belongs to no event loop, so that it can be used in one ``asyncio.run`` after another.

    Example:
        >>> with VerifierPool(workers=2, timeout=10.0, retries=2) as pool:
        ...     reward = asyncio.run(pool.score(task, trajectory))

    Args:
        workers: verdicts at a time.
        timeout: time of one verdict from when the verifier is loaded and begins, in which its processes run or sleep,
            or processor time where it judges every answer [s]. Time in which the machine lets them wait counts in
            neither; see ``verdict_clock``.
        retries: tries after the first.
        memory: address space of a verifier's process [bytes].
        environment: names of variables that verifiers get beside ``child_environment``'s, such as that of a key.

    Raises:
        UserError: this is not Linux.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout: float = 10.0,
        retries: int = 2,
        memory: int = 4 << 30,
        environment: Sequence[str] = (),
    ):
        if sys.platform != "linux":
            raise UserError("verifiers run in supervised processes, which need Linux; use a Linux machine or container")
        self.timeout, self.retries, self.workers = timeout, retries, workers
        self._memory = memory
        self._threads = ThreadPoolExecutor(workers, "verifier")
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._judges: dict[str, Judged] = {}
        for _ in range(workers):
            self._idle.put(_Process(memory, environment))

    async def score(self, task: Task, trajectory: Trajectory) -> Reward:
        """The reward of an episode's answer.

        An episode that was cut by its budget has no final answer: its reward is 0 without a verdict.

        Raises:
            VerifierError: no verdict after all tries; the sample is to be masked.
            UserError: there is no such verifier, or it cannot be loaded, see ``judges``.
            ValueError: the episode is unfinished or masked.
        """
        if trajectory.status == "truncated":
            return Reward(0.0, info={"cut": True})
        if trajectory.status != "finished":
            raise ValueError(f"an episode that is {trajectory.status} has no reward")
        return await self.score_answer(task, trajectory.answer)

    async def score_answer(self, task: Task, answer: str) -> Reward:
        """The reward of an answer as text; raises as ``score`` does."""
        return await self.submit(self._score, task, answer)

    async def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a blocking function in one of the pool's threads, so that it counts among the verdicts at a time."""
        return await asyncio.wrap_future(self._threads.submit(function, *arguments))

    async def judges(self, verifier: str) -> Judged:
        """What a verifier judges, and whether it needs a sandbox; its module is imported in a verifier's process.

        Raises:
            VerifierError: the process died over it.
            UserError: there is no such verifier, it cannot be loaded, or what it needs is not installed.
        """
        if verifier not in self._judges:
            self._judges[verifier] = (await self.submit(self._ask, {"verifier": verifier}))["judges"]
        return self._judges[verifier]

    async def judged_by(self, tasks: Iterable[Task]) -> set[Judged]:
        """What the verifiers of tasks judge, asked before anything else is done; raises as ``judges`` does."""
        return {await self.judges(name) for name in sorted({task.verifier for task in tasks if task.verifier})}

    def _score(self, task: Task, answer: str) -> Reward:
        control = {"verifier": task.verifier, "task": task.to_json()}
        return Reward(**self._ask(control | {"answer": answer}, control)["reward"])

    def _ask(self, request: dict[str, Any], control: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a verifier's process says, after as many tries as there are.

        An answer that is certain to have failed the verifier is not tried again, and one that may have done so is tried
        twice: then ``control`` asks for the verdict on the task's control answer.
        """
        reason, doubts = "", 0
        for tries in range(1, 2 + self.retries):
            said = self._try(request)
            if "error" not in said:
                return said
            reason, blame = said["error"], said.get("blame")
            if blame == BUSY:
                break
            doubts += blame == UNCLEAR
            if control is not None and (blame == ANSWER or doubts == 2 or (doubts and tries > self.retries)):
                on_control = self._try(control)
                if "error" not in on_control:
                    return {"reward": Reward(0.0, info={FAILED: reason})._asdict()}
                reason += f"; nor on its control answer: {on_control['error']}"
        raise VerifierError(
            f"no verdict of the verifier {request['verifier']!r} after {tries} {'try' if tries == 1 else 'tries'}: "
            f"{reason}"
        )

    def _try(self, request: dict[str, Any]) -> dict[str, Any]:
        """What one of the processes says to a request."""
        process = self._idle.get()  # there is always one: as many threads as processes
        try:
            number = next(self._numbers)
            said = process.ask({"id": number, "added": verifiers.added, "timeout": self.timeout, **request})
        finally:
            self._idle.put(process)
        if "mistake" in said:
            raise UserError(said["mistake"])
        return said

    def close(self) -> None:
        """Ends all processes; waits for verdicts that are under way."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().close()

    def __enter__(self) -> VerifierPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Process:
    """A supervisor, started when it is first asked and again when it has died."""

    def __init__(self, memory: int, environment: Sequence[str]):
        self._memory, self._environment = memory, environment
        self._process: subprocess.Popen | None = None
        self._connection: socket.socket | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; an error where there is none."""
        if self._process is None:
            self._start()
        try:
            frames.send(self._connection, request)
            return frames.receive(self._connection)
        except (OSError, frames.FrameError) as error:
            self.close()
            return {"error": f"the supervisor of the verifier's process died: {error}"}
        except ValueError as error:  # it is too long to be sent
            return {"error": str(error), "blame": ANSWER}

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair()
        command = [sys.executable, "-m", _SUPERVISOR, str(theirs.fileno()), str(self._memory)]
        folders = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = child_environment(self._environment) | _ONE_THREAD | {"PYTHONPATH": folders}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, env=environment
            )

    def close(self) -> None:
        """Ends the supervisor, and with it everything below."""
        if self._process is not None:
            self._connection.close()
            self._process.wait()
            self._process = None
