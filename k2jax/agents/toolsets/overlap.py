"""The calls of one answer at a time, in an order of results, programs and numbers that does not depend on timing.

Calls that share something, such as an interpreter or the files of a sandbox, are a strand: they are carried out in
their order. Strands run at a time. Sub-episodes that their calls spawn before they wait for anything are numbered in
the order of the calls. A later spawn waits until every strand has ended or waits with it, and those are numbered in
the order of the calls, too: which of two tools was faster decides no random number of a sub-episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
import contextlib
import contextvars
import dataclasses
from typing import Any, TypeVar

from k2jax.agents.task import Task
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import NO_CALL

Spawn = Callable[..., Awaitable[Trajectory]]
"""Runs a task as a sub-episode, see ``Rollout.spawn``."""
_Result = TypeVar("_Result")
_STRAND: contextvars.ContextVar[_Strand | None] = contextvars.ContextVar("strand", default=None)


@dataclasses.dataclass(eq=False)
class _Strand:
    """Calls that wait for one another.

    Attributes:
        owner: whose answer they are of; a sub-episode in the same context has another one.
        numbers: of the calls.
        call: number of the one that is carried out.
        is_over: whether all have ended.
    """

    owner: Overlap
    numbers: list[int]
    call: int = 0
    is_over: bool = False


class Overlap:
    """Carries out the calls of an episode's answers, one answer after the other.

    Args:
        spawn: runs sub-episodes; None where nobody does.
    """

    def __init__(self, spawn: Spawn | None = None):
        self._spawn = spawn
        self._strands: list[_Strand] = []
        self._held: list[tuple[_Strand, int, asyncio.Future]] = []  # spawns that wait, and the calls that ask for them
        self._has_begun = False  # whether every strand of the answer has run until it waits

    @property
    def spawn(self) -> Spawn | None:
        """The same for toolsets: calls that run at a time get the numbers of their sub-episodes in order."""
        return None if self._spawn is None else self._spawn_in_order

    async def run(
        self, queues: Sequence[Hashable | None], carry_out: Callable[[int], Awaitable[_Result]]
    ) -> list[_Result]:
        """The results of the calls of one answer, in their order.

        Args:
            queues: what each call shares with others; None for a call that may overlap with all.
            carry_out: carries out the call of a number, from 0.

        Raises:
            Exception: what the first call raised; the others have been cancelled and have ended.
        """
        strands: dict[Hashable, _Strand] = {}
        for number, queue in enumerate(queues):
            key = (number,) if queue is None else (None, queue)
            strands.setdefault(key, _Strand(self, [])).numbers.append(number)
        if len(strands) < 2:
            return await self._in_order(strands.values(), carry_out)
        self._strands, self._held, self._has_begun = list(strands.values()), [], False
        results: dict[int, _Result] = {}
        tasks = [asyncio.create_task(self._follow(strand, carry_out, results)) for strand in self._strands]
        asyncio.get_running_loop().call_soon(self._begin_waiting, self._strands)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in [*failed, *tasks]:
            task.result()
        return [results[number] for number in range(len(queues))]

    async def _in_order(
        self, strands: Iterable[_Strand], carry_out: Callable[[int], Awaitable[_Result]]
    ) -> list[_Result]:
        """The results of calls that all wait for one another."""
        results: dict[int, _Result] = {}
        for strand in strands:
            before = _STRAND.set(strand)
            try:
                await self._carry_out(strand, carry_out, results)
            finally:
                _STRAND.reset(before)
        return list(results.values())

    @staticmethod
    async def _carry_out(
        strand: _Strand, carry_out: Callable[[int], Awaitable[_Result]], results: dict[int, _Result]
    ) -> None:
        for number in strand.numbers:
            strand.call = number
            results[number] = await carry_out(number)

    async def _follow(
        self, strand: _Strand, carry_out: Callable[[int], Awaitable[_Result]], results: dict[int, _Result]
    ) -> None:
        _STRAND.set(strand)  # of this task alone
        try:
            await self._carry_out(strand, carry_out, results)
        finally:
            strand.is_over = True
            self._release()

    def _begin_waiting(self, strands: list[_Strand]) -> None:
        """Every strand has run until it waits: from here on, timing decides which is next."""
        if strands is self._strands:
            self._has_begun = True
            self._release()

    async def _spawn_in_order(self, task: Task, kind: str = "", role: str = "", **options: Any) -> Trajectory:
        strand = _STRAND.get()
        if strand is not None and strand.owner is not self:
            strand = None
        call = NO_CALL if strand is None else strand.call
        if strand in self._strands and self._has_begun and not strand.is_over:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held.append((strand, strand.call, turn))
            asyncio.get_running_loop().call_soon(self._release)  # once this one waits: else it would be the first
            await turn
        assert self._spawn is not None
        return await self._spawn(task, kind, role, call=call, **options)

    def _release(self) -> None:
        """Lets the spawns go on that wait, where nothing but them goes on by itself."""
        waiting = {strand for strand, _, _ in self._held}
        if not self._has_begun or not all(strand.is_over or strand in waiting for strand in self._strands):
            return
        held, self._held = sorted(self._held, key=lambda each: each[1]), []
        for _, _, turn in held:
            with contextlib.suppress(asyncio.InvalidStateError):  # it was cancelled meanwhile
                turn.set_result(None)
