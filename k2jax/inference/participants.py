"""Coroutines that wait for engines, and the loop that steps the engines while all of them wait; see ``lockstep``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import contextlib
import contextvars
from typing import Any, Protocol

_CURRENT: contextvars.ContextVar[dict[int, Participant]] = contextvars.ContextVar("participants")


class Stepped(Protocol):
    """One of the engines in lockstep, with those that wait for it; see ``LockstepClient``, which is one."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def admit(self) -> None:
        """Hands over what came since the last step, in an order that does not depend on when it came."""
        ...

    async def step(self) -> None:
        """One step of the engine, where it has work."""
        ...

    def settle(self) -> None:
        """Hands every outcome that is there to who waits for it."""
        ...

    async def call(self, function: Callable[[Any], Any]) -> Any:
        """Runs ``function(engine)`` between two steps."""
        ...

    def fail(self, error: Exception) -> None:
        """Makes an error the outcome of all that wait."""
        ...


class Participant:
    """A coroutine that the engines wait for, from its making to the end of its ``async with`` block.

    Attributes:
        key: rank of its requests among those of others.
        waits: whether it waits for an engine.
        children: participants that it waits for in ``LockstepClient.gather``.
    """

    def __init__(self, lockstep: Lockstep, key: tuple[int, ...], parent: Participant | None):
        self.key, self.waits, self.children = key, False, 0
        self._lockstep, self._parent = lockstep, parent
        self._numbered = 0  # children so far
        self._present = True
        if parent is not None:
            parent.children += 1

    @property
    def blocked(self) -> bool:
        """Whether it cannot submit anything before an engine or another participant continues."""
        return self.waits or self.children > 0

    def next_key(self) -> tuple[int, ...]:
        """The key of the next child."""
        self._numbered += 1
        return (*self.key, self._numbered - 1)

    def leave(self) -> None:
        """Ends the participation; the parent, if it waits for no other child, counts as busy at once."""
        if self._present:
            self._present = False
            if self._parent is not None:
                self._parent.children -= 1
            self._lockstep.forget(self)

    async def __aenter__(self) -> Participant:
        self._token = _CURRENT.set({**_CURRENT.get({}), id(self._lockstep): self})
        return self

    async def __aexit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
        self.leave()


class Lockstep:
    """What clients of several engines share: the participants, and the loop that steps the engines.

    Attributes:
        clients: of each engine, in the order of their steps.
        thread: on which all engines run.
        lock: held while one of them runs.
        failed: why one of them has failed; None where none has.
    """

    def __init__(self) -> None:
        self.clients: list[Stepped] = []
        self.thread, self.lock = ThreadPoolExecutor(1, thread_name_prefix="engine"), asyncio.Lock()
        self.failed: BaseException | None = None
        self._participants: dict[tuple[int, ...], Participant] = {}
        self._numbered = 0
        self._driver: asyncio.Task | None = None

    def current(self) -> Participant | None:
        """The participant that runs now."""
        return _CURRENT.get({}).get(id(self))

    def join(self, parent: Participant | None) -> Participant:
        """A new participant, which counts as busy."""
        key = parent.next_key() if parent else (self._numbered,)
        self._numbered += parent is None
        self._participants[key] = Participant(self, key, parent)
        return self._participants[key]

    def forget(self, participant: Participant) -> None:
        """Takes a participant that has left off the list."""
        del self._participants[participant.key]
        self.check_soon()

    def check_soon(self) -> None:
        """Steps after the callbacks that are ready now: tasks that were made together register before that."""
        with contextlib.suppress(RuntimeError):  # no loop runs any more
            asyncio.get_running_loop().call_soon(self._check)

    def settle(self) -> None:
        """Hands every outcome that is there to who waits for it."""
        for client in self.clients:
            client.settle()

    def _check(self) -> None:
        if self._driver is None and self._may_step():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    def _may_step(self) -> bool:
        if self.failed is not None or not any(client.has_work() for client in self.clients):
            return False
        return all(each.blocked for each in self._participants.values())

    async def _drive(self) -> None:
        """Steps until a participant is busy."""
        try:
            while self._may_step():
                async with self.lock:
                    for client in self.clients:
                        client.admit()
                    for client in self.clients:
                        await client.step()
                    self.settle()
        except Exception as error:
            self._fail(error)
        finally:
            self._driver = None

    def _fail(self, error: Exception) -> None:
        self.failed = error
        for client in self.clients:
            client.fail(error)
        self.settle()
