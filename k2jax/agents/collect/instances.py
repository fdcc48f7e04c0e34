"""How many of several engines serve each role: orchestrators, their sub-agents, judges (Kimi K2.5, appendix D).

A policy without clocks and engines. Where roles have the same weights, ``routing`` follows it at every review;
where they have weights of their own, an engine that changes its role is drained and loads others, which
``python -m k2jax.bench instances`` simulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MEMORY = 0.25
"""Weight of the last review in the moving mean of the work: queues come in waves, and engines take long to follow."""


class RoleLoad(NamedTuple):
    """What a role's engines did since the last review, in the mean over time.

    Attributes:
        engines: that serve it.
        busy: share of their slots that had a request, in [0, 1].
        waiting: requests that wait for a slot.
    """

    engines: int
    busy: float
    waiting: float


def work_of(load: RoleLoad, slots: int) -> float:
    """The engines that a role would fill: what is at work in those that it has, and what waits, over an engine's slots.

    Args:
        load: of the role.
        slots: requests that run at a time in an engine.
    """
    return load.engines * load.busy + load.waiting / slots


def shared_instances(engines: int, work: Sequence[float], now: Sequence[int]) -> list[int]:
    """How many engines serve each role (orchestrator, sub-agents), following what the roles have to do.

    The ratio moves by one engine at a time, and only where that brings it nearer to the ratio of the work by more than
    half an engine, so that it does not swing. Every role keeps one engine.

    Args:
        engines: how many there are, at least as many as roles.
        work: of each role, requests that wait or run, or what ``work_of`` gives.
        now: engines of each role; they sum to ``engines``.
    """
    if sum(now) != engines or min(now) < 1 or len(work) != len(now):
        raise ValueError("each role has at least one engine, and together they have all")
    total = sum(work)
    if total <= 0:
        return list(now)
    shares = [max(1.0, engines * each / total) for each in work]
    shortage = [want - have for want, have in zip(shares, now, strict=True)]
    gaining = int(np.argmax(shortage))
    losing = min((role for role in range(len(now)) if now[role] > 1), key=lambda role: shortage[role], default=gaining)
    if gaining == losing or shortage[gaining] <= 0.5 or shortage[losing] >= -0.5:
        return list(now)
    return [have + (role == gaining) - (role == losing) for role, have in enumerate(now)]


class InstanceRatio:
    """Follows the loads of roles from review to review; what a review answers depends on those before it.

    Args:
        instances: engines of each role, at least one.
        slots: requests that run at a time in an engine.

    Attributes:
        instances: engines that each role has, or gets when those that leave another are drained.
    """

    def __init__(self, instances: Sequence[int], slots: int):
        self.instances, self._slots = list(instances), slots
        self._work_R = np.array(instances, float)

    def review(self, loads: Sequence[RoleLoad]) -> list[int]:
        """The engines of each role from now on, after the loads since the last review, in the order of the roles."""
        work_R = np.array([work_of(load, self._slots) for load in loads])
        self._work_R += MEMORY * (work_R - self._work_R)
        self.instances = shared_instances(sum(self.instances), self._work_R.tolist(), self.instances)
        return self.instances
