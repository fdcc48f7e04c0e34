"""Controls of tasks, each made once and kept, and whether a patch ends in them as the reference patch does.

A program that lies by the toss of a coin in each process passes with the probability 2^-``calibration.BITS`` or less.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
import hashlib
import json
import secrets
import threading

from k2jax.agents.sandbox import Sandbox
from k2jax.agents.task import Task
from k2jax.tasks.swe.calibration import make_controls
from k2jax.tasks.swe.runs import PatchedTree, run_file
from k2jax.tasks.swe.variants import Controls, counts

MAX_TASKS = 256
"""Tasks whose controls are kept in memory."""


class _Slot:
    """The controls of a task, which one verdict makes and others wait for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.controls: Controls | None = None


_slots: OrderedDict[str, _Slot] = OrderedDict()
_slots_lock = threading.Lock()


async def controls_of(task: Task, sandbox: Sandbox) -> Controls:
    """The controls of a task; see ``make_controls``."""
    text = json.dumps([task.id, task.image, dict(task.metadata)], sort_keys=True, default=str)
    key = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    with _slots_lock:
        slot = _slots.setdefault(key, _Slot())
        _slots.move_to_end(key)
        while len(_slots) > MAX_TASKS:
            _slots.popitem(last=False)
    while not slot.lock.acquire(blocking=False):
        await asyncio.sleep(0.05)  # verdicts have event loops of their own, and none of asyncio's locks serves several
    try:
        slot.controls = slot.controls or await make_controls(task, sandbox)
        return slot.controls
    finally:
        slot.lock.release()


async def contradictions(task: Task, sandbox: Sandbox, tree: PatchedTree, controls: Controls) -> list[str]:
    """Names of tests that end otherwise in a run with controls than they must, of the first such run."""
    for variant in secrets.SystemRandom().sample(controls.variants, len(controls.variants)):
        kinds = (await run_file(task, sandbox, tree, variant.file, variant.parts)).kinds
        passed = {
            test
            for test in (*variant.failing, *variant.passing)
            if counts(task, controls, test, kinds.get(variant.names.get(test, test)))
        }
        if wrong := sorted(passed & set(variant.failing) | set(variant.passing) - passed):
            return wrong
    return []
