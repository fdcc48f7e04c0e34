"""Engines in lockstep with the coroutines that use them, so that a run's programs do not depend on timing.

Which sequences share a program decides how its sums are rounded. ``LockstepClient`` therefore steps the engine only
while every participant waits for it. A participant that waits for anything else, such as a tool, a sandbox or a
verifier, may come back with a request, and the engine waits for it. Requests that came meanwhile are admitted in the
order of their participants' keys. By induction over steps, the engine then runs the same programs on every run.

Several engines, each with a client of its own, share their participants: one that waits for any of them is blocked.
While all are blocked, every engine that has work takes a step, and whoever got an answer of any goes on behind that.

A participant begins to count when ``gather()`` is called, not when its task first runs, and it counts as busy again as
soon as its result is there, not when its task wakes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
import time
from typing import Any

from k2jax.client import Completion, OnToken, Sampling
from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.media import PlacedChunk
from k2jax.inference.participants import Lockstep, Participant
from k2jax.inference.request import Request, RequestWatch
from k2jax.inference.request_client import RequestClient


class _Call:
    """A ``generate`` that has not returned: who waits for it, and its outcome once the engine has delivered it."""

    def __init__(self, participant: Participant):
        self.participant = participant
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.outcome: tuple[Completion | None, Exception | None] | None = None

    def deliver(self, completion: Completion | None, error: Exception | None) -> None:
        self.outcome = completion, error

    def settle(self) -> None:
        """Hands the outcome to the coroutine, whose participant is busy from now on."""
        completion, error = self.outcome
        self.participant.waits = False
        if not self.done.done():
            self.done.set_result(completion) if error is None else self.done.set_exception(error)


class LockstepClient(RequestClient):
    """Steps an engine for coroutines on one event loop; see the module's text. ``on_token`` runs on another thread.

    Example:
        >>> client = LockstepClient(engine)
        >>> frozen = LockstepClient(other_engine, beside=client)
        >>> results = await client.gather(*(rollout(client, frozen, task) for task in tasks))

    Args:
        engine: nobody else may use it.
        beside: the client of another engine, whose participants are this one's; engines step in the order in which
            their clients were made.

    Attributes:
        busy_seconds: for which the engine has stepped [s].
    """

    one_at_a_time = True

    def __init__(self, engine: Engine, beside: LockstepClient | None = None):
        self._engine, self.busy_seconds = engine, 0.0
        self._lockstep = Lockstep() if beside is None else beside._lockstep
        self._lockstep.clients.append(self)
        self._calls: dict[Request, _Call] = {}  # all that have not returned
        self._submitted: list[Request] = []  # of them those that the engine does not have yet
        self._abandoned: list[Request] = []  # to be cancelled before the next step

    @property
    def engine(self) -> Engine:
        """The engine, which is the caller's while nobody generates."""
        return self._engine

    def exchange(self, engine: Engine) -> None:
        """Goes on with another engine, while nobody generates."""
        if self._calls:
            raise RuntimeError("an engine in lockstep is exchanged while nobody waits for it")
        self._engine = engine

    @property
    def failed(self) -> BaseException | None:
        """Why an engine of the participants has failed; None where none has."""
        return self._lockstep.failed

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs coroutines as participants, in the order given, and waits for all of them.

        The caller, where it is a participant, does not hold the engines up meanwhile. Clients beside each other do the
        same here.

        Raises:
            Exception: the first, in the order given, that a coroutine raised, after all have ended.
        """
        parent = self._lockstep.current()
        children = [self._lockstep.join(parent) for _ in coroutines]
        tasks = [
            asyncio.ensure_future(_within(child, coroutine))
            for child, coroutine in zip(children, coroutines, strict=True)
        ]
        for task, child, coroutine in zip(tasks, children, coroutines, strict=True):
            task.add_done_callback(lambda _, child=child: child.leave())  # also where it was cancelled before it began
            task.add_done_callback(lambda _, coroutine=coroutine: coroutine.close())
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def run_request(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[PlacedChunk] = (),
    ) -> tuple[Request, Completion]:
        """See ``RequestClient``."""
        participant = self._lockstep.current()
        if participant is None:
            raise UserError("generate needs a participant around it: run the coroutine in client.gather")
        if participant.blocked:
            raise UserError("a participant waits for one generation at a time; client.gather runs several")
        if self.failed is not None:
            raise RuntimeError("the engine has failed") from self.failed
        call = _Call(participant)
        generated = () if resume is None else resume.tokens
        watch = RequestWatch(call.deliver, resume, on_token)
        request = self._engine.make_request(prompt, sampling, generated, media=media, on_token=watch)
        request.order, participant.waits = participant.key, True
        self._calls[request] = call
        self._submitted.append(request)
        self._lockstep.check_soon()
        try:
            return request, await call.done
        except asyncio.CancelledError:
            participant.waits = False
            self._abandoned.append(request)
            self._lockstep.check_soon()
            raise
        finally:
            self._calls.pop(request, None)

    async def longest_sequence(self) -> int:
        """See ``Client.longest_sequence``."""
        return self._engine.max_length

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        """Runs ``function(engine)`` on the engine's thread between two steps, such as an update of the weights.

        It happens at the same point of every run where the caller is a participant.
        """
        lockstep = self._lockstep
        async with lockstep.lock:
            result = await asyncio.get_running_loop().run_in_executor(lockstep.thread, function, self._engine)
            lockstep.settle()
        lockstep.check_soon()
        return result

    async def call_each(self, function: Callable[[Engine], Any]) -> None:
        """``call`` for the engine of every client beside this one and for its own, in the order of their steps."""
        for client in self._lockstep.clients:
            await client.call(function)

    async def cancel_all(self) -> None:
        """Ends every generation after the step at work: each returns its tokens so far, and can be resumed.

        Those of engines beside this one go on.
        """
        async with self._lockstep.lock:
            self.admit()
            self._engine.cancel_all()
            self.settle()

    def has_work(self) -> bool:
        """See ``Stepped``."""
        return bool(self._submitted or self._abandoned or self._engine.has_work())

    def admit(self) -> None:
        """See ``Stepped``."""
        for request in self._submitted:
            self._engine.enqueue(request)
        for request in self._abandoned:
            self._engine.cancel(request)
        self._submitted, self._abandoned = [], []
        self._engine.sort_waiting()

    async def step(self) -> None:
        """See ``Stepped``."""
        if self._engine.has_work():
            began = time.perf_counter()
            await asyncio.get_running_loop().run_in_executor(self._lockstep.thread, self._engine.step)
            self.busy_seconds += time.perf_counter() - began

    def settle(self) -> None:
        """See ``Stepped``."""
        for call in list(self._calls.values()):
            if call.outcome is not None:
                call.settle()

    def fail(self, error: Exception) -> None:
        """See ``Stepped``."""
        for call in self._calls.values():
            failure = RuntimeError("the engine has failed")
            failure.__cause__ = error
            call.outcome = None, failure


async def _within(participant: Participant, coroutine: Coroutine[Any, Any, Any]) -> Any:
    async with participant:
        return await coroutine
