"""The process in which verifiers run, one verdict after the other, until one of them gives none."""

from __future__ import annotations

import json
import math
from numbers import Real
import os
import resource
import socket
from typing import Any

import numpy as np

from k2jax.env.registry import verifiers
from k2jax.env.task import Task
from k2jax.env.verifier_process import frames
from k2jax.env.verifier_process.process_tree import adopt_orphans, die_with_parent, has_children
from k2jax.errors import UserError, abbreviate
from k2jax.trajectory import Reward

_LARGEST_FILE = 64 << 20


def serve(connection: socket.socket, memory: int) -> None:
    """Answers requests until the connection ends: ``started`` when the verifier is loaded, then a verdict.

    A request without a task asks whether the verifier needs a sandbox.

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
        except UserError as error:
            frames.send(connection, {"id": request["id"], "mistake": str(error)})
            continue
        if "task" not in request:
            frames.send(connection, {"id": request["id"], "sandbox": bool(getattr(verifier, "needs_sandbox", False))})
            continue
        frames.send(connection, {"id": request["id"], "started": True})
        answer = {"id": request["id"]} | _verdict(verifier, Task.from_json(request["task"]), request["answer"])
        if os.getpid() != own:  # the verifier has forked, and its child has come back
            os._exit(1)
        frames.send(connection, answer | {"left": has_children()})


def _confine(memory: int) -> None:
    die_with_parent()
    adopt_orphans()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.nice(5)
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _LARGEST_FILE),
    ):
        resource.setrlimit(limit, (value, value))


def _verdict(verifier: Any, task: Task, answer: str) -> dict[str, Any]:
    try:
        reward = checked_reward(verifier(task, answer))
        json.dumps(reward, allow_nan=False)  # fails here rather than when it is sent
        return {"reward": reward}
    except BaseException as error:
        return {"error": f"the verifier raised {type(error).__name__}: {abbreviate(str(error), 200)}"}


def checked_reward(reward: Any) -> dict[str, Any]:
    """What a verifier returned, as JSON: a Reward, or a number alone.

    Raises:
        ValueError: it is none, or not of finite numbers.
    """
    reward = reward if isinstance(reward, Reward) else Reward(reward)
    numbers = [reward.value, *reward.parts.values()]
    if not all(isinstance(number, Real | np.bool_) and math.isfinite(number) for number in numbers):
        raise ValueError(f"no reward of finite numbers: {abbreviate(reward)}")
    parts = {name: float(part) for name, part in reward.parts.items()}
    return {"value": float(reward.value), "parts": parts, "info": dict(reward.info)}


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
