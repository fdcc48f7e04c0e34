"""Engines of the policy and of frozen roles, which move from one to another as the requests of each ask for.

Kimi K2.5 (appendix D) divides engines between orchestrators and sub-agents and follows the load. Engines that have the
same weights are divided by ``agents.collect.routing``; those here have weights of their own. An engine that moves
answers what it was asked for, loads the weights of its new role and joins again. Until then nothing else moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import time

import numpy as np

from k2jax.agents.collect.engine_states import EngineRole
from k2jax.agents.collect.instances import InstanceRatio, RoleLoad
from k2jax.rl.engines.engine_pool import EnginePool
from k2jax.rl.engines.joined_engine import JoinedEngine
from k2jax.trajectory.steps import POLICY

REVIEW_SECONDS = 20.0
"""Time between two looks at what the roles have to do [s]."""
MOVE_SECONDS = 300.0
"""Time in which an engine that moves joins again, after which it is counted on no longer [s]."""


class RoleEngines:
    """Moves engines between the pools of a run; see the module's text.

    Args:
        pools: of the roles by name, that of the policy first. Of frozen ones ``needed`` is the checkpoint that answers.
        say: prints a line.

    """

    def __init__(self, pools: Mapping[str, EnginePool], say: Callable[[str], None]):
        self._pools, self._say = pools, say
        self._moving: dict[str, tuple[str, float]] = {}  # name of the engine: its next role, and until when it may come
        self._loads: list[list[RoleLoad]] = []
        self._reviewed = time.monotonic()
        self._ratio: InstanceRatio | None = None

    def look(self) -> None:
        """Moves an engine where that is due; called now and then on the event loop of the pools."""
        if len(self._pools) == 1:
            return
        self._exchange_checkpoints()
        self._see_who_has_come()
        staying = {
            name: [e for e in pool.engines.values() if e.next_role is None] for name, pool in self._pools.items()
        }
        counts = {name: len(engines) for name, engines in staying.items()}
        coming = [role for role, _ in self._moving.values()]
        lacking = [name for name, count in counts.items() if not count and name not in coming]
        if lacking:
            most = max(counts, key=counts.__getitem__)
            if counts[most] > 1:
                self._move(most, lacking[0])
            return  # what roles do then says nothing of their shares, and would be kept for as long as it lasts
        self._loads.append([pool.load() for pool in self._pools.values()])
        if not self._moving and time.monotonic() - self._reviewed > REVIEW_SECONDS:
            self._review(list(counts.values()))

    def _exchange_checkpoints(self) -> None:
        for name, pool in self._pools.items():
            for engine in list(pool.engines.values()) if name != POLICY else ():
                if engine.state is not None and engine.state.version != pool.needed and engine.next_role is None:
                    self._send(pool, engine, EngineRole(name, pool.needed))

    def _see_who_has_come(self) -> None:
        now = time.monotonic()
        for name, pool in self._pools.items():
            for engine in pool.engines.values():
                if engine.next_role is None and self._moving.get(engine.name, ("", 0.0))[0] == name:
                    del self._moving[engine.name]
        self._moving = {name: (role, end) for name, (role, end) in self._moving.items() if now < end}

    def _review(self, counts: list[int]) -> None:
        """One engine moves where the work since the last review is shared otherwise than the engines are."""
        loads, self._loads, self._reviewed = self._loads, [], time.monotonic()
        means = np.mean([[(load.busy, load.waiting) for load in each] for each in loads], axis=0)
        if self._ratio is None:
            self._ratio = InstanceRatio(counts, 1)
        self._ratio.instances = counts  # some may have come or gone
        wanted = self._ratio.review([RoleLoad(count, *mean) for count, mean in zip(counts, means, strict=True)])
        changes = {name: want - have for name, want, have in zip(self._pools, wanted, counts, strict=True)}
        gaining = max(changes, key=changes.__getitem__)
        if changes[gaining] > 0:
            self._move(min(changes, key=changes.__getitem__), gaining)

    def _move(self, giving: str, gaining: str) -> None:
        pool = self._pools[giving]
        staying = [engine for engine in pool.engines.values() if engine.next_role is None]
        engine = min(staying, key=lambda engine: engine.under_way)
        self._say(f"the engine {engine.name} of {giving} is to answer as {gaining}")
        self._send(pool, engine, EngineRole(gaining, 0 if gaining == POLICY else self._pools[gaining].needed))

    def _send(self, pool: EnginePool, engine: JoinedEngine, role: EngineRole) -> None:
        self._moving[engine.name] = role.role, time.monotonic() + MOVE_SECONDS
        pool.give_away(engine, role)
