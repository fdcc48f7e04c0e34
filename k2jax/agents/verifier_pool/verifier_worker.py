"""The process in which verifiers run, one verdict after the other, until one of them gives none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import resource
import socket
from typing import Any

from k2jax.agents.registry import verifiers
from k2jax.agents.rewards import checked_reward
from k2jax.agents.task import Task
from k2jax.agents.verifier import Control, Verifier
from k2jax.agents.verifier_pool import verifier_messages as frames
from k2jax.agents.verifier_pool.verifier_messages import ANSWER, UNCLEAR, Judged
from k2jax.errors import UserError, abbreviate
from k2jax.files.process_tree import adopt_orphans, die_with_parent, has_children

_LARGEST_FILE = 64 << 20


def serve(connection: socket.socket, memory: int) -> None:
    """Answers requests until the connection ends: ``started`` when the verifier is loaded, then a verdict.

    A request without a task asks what the verifier judges, and one without an answer whether it works on
    the task: then the verdict is that on the control answer.

    Args:
        connection: to the supervisor.
        memory: bytes of address space.
    """
    _confine(memory)
    own = os.getpid()
    while True:
        request = frames.receive(connection)
        try:
            for name, path in request["added"].items():
                verifiers.add(name, path)
            verifier = verifiers.get(request["verifier"])
            getattr(verifier, "load_needs", bool)()
        except UserError as error:
            frames.send(connection, {"id": request["id"], "mistake": str(error)})
            continue
        if "task" not in request:
            frames.send(connection, {"id": request["id"], "judges": _judged_by(verifier)})
            continue
        control = getattr(verifier, "control", None)
        started = {"started": True, "judges_every_answer": control is not None}
        frames.send(connection, {"id": request["id"]} | started)
        task = Task.from_json(request["task"])
        if "answer" in request:
            told = _verdict(verifier, task, request["answer"])
        else:
            told = _verdict_on_control(verifier, task, control)
        answer = {"id": request["id"]} | told
        if os.getpid() != own:  # the verifier has forked, and its child has come back
            os._exit(1)
        frames.send(connection, answer | {"left": has_children()})


def _judged_by(verifier: Any) -> Judged:
    if not (isinstance(verifier, type) and issubclass(verifier, Verifier)):
        return "answer"
    return "episode" if verifier.spec is None else "episode in a sandbox"


def _confine(memory: int) -> None:
    die_with_parent()
    adopt_orphans()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    with contextlib.suppress(OSError):  # where the machine runs out of memory, this goes before the run
        Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE),
    ):
        resource.setrlimit(limit, (value, value))


def _verdict(verifier: Any, task: Task, answer: str) -> dict[str, Any]:
    try:
        return {"reward": checked_reward(verifier(task, answer))}
    except BaseException as error:
        blame = UNCLEAR if isinstance(error, MemoryError) else ANSWER
        return {"error": f"the verifier raised {type(error).__name__}: {abbreviate(str(error), 200)}", "blame": blame}


def _verdict_on_control(verifier: Any, task: Task, control: Control | None) -> dict[str, Any]:
    """The verdict on the control answer; an error where it is not the right one."""
    if control is None:
        return {"error": "the verifier does not say that it judges every answer"}
    try:
        told = _verdict(verifier, task, control.answer(task))
    except Exception as error:
        return {"error": f"the task has no control answer: {type(error).__name__}: {abbreviate(str(error), 200)}"}
    if "error" in told or control.worth in (None, told["reward"]["value"]):
        return told
    return {"error": f"its reward is {told['reward']['value']:g} and not {control.worth:g}"}


def start(memory: int, inherited: socket.socket) -> tuple[int, socket.socket]:
    """Forks a worker; returns its process id and the connection to it.

    The process that forks has imported this module, so that a worker starts in milliseconds.

    Args:
        memory: bytes of address space.
        inherited: a connection of this process that is none of the worker's business.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        inherited.close()
        serve(theirs, memory)
    finally:
        os._exit(1)
