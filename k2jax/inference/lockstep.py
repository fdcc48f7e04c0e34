"""An engine in lockstep with the coroutines that use it, so that a run's programs do not depend on timing.

Which sequences share a program decides how its sums are rounded. ``LockstepClient`` therefore steps the engine only
while every participant waits for it. A participant that waits for anything else, such as a tool, a sandbox or a
verifier, may come back with a request, and the engine waits for it. Requests that came meanwhile are admitted in the
order of their participants' keys. By induction over steps, the engine then runs the same programs on every run.

A participant begins to count when ``gather()`` is called, not when its task first runs, and it counts as busy again as
soon as its result is there, not when its task wakes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
import contextvars
from typing import Any

from k2jax.client import Completion, OnToken, Sampling
from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.media import PlacedChunk
from k2jax.inference.request import Request, RequestWatch
from k2jax.inference.request_client import RequestClient

_CURRENT: contextvars.ContextVar[dict[int, Participant]] = contextvars.ContextVar("participants")


class Participant:
    """A coroutine that the engine waits for, from its making to the end of its ``async with`` block.

    Attributes:
        key: rank of its requests among those of others.
        waits: whether it waits for the engine.
        children: participants that it waits for in ``LockstepClient.gather``.
    """

    def __init__(self, client: LockstepClient, key: tuple[int, ...], parent: Participant | None):
        self.key, self.waits, self.children = key, False, 0
        self._client, self._parent = client, parent
        self._numbered = 0  # children so far
        self._present = True
        if parent is not None:
            parent.children += 1

    @property
    def blocked(self) -> bool:
        """Whether it cannot submit anything before the engine or another participant continues."""
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
            self._client.forget(self)

    async def __aenter__(self) -> Participant:
        self._token = _CURRENT.set({**_CURRENT.get({}), id(self._client): self})
        return self

    async def __aexit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
        self.leave()


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
        >>> results = await client.gather(*(rollout(client, task) for task in tasks))

    Args:
        engine: nobody else may use it.

    Attributes:
        failed: why the engine has failed; None where it has not.
    """

    one_at_a_time = True

    def __init__(self, engine: Engine):
        self._engine = engine
        self._participants: dict[tuple[int, ...], Participant] = {}
        self._numbered = 0
        self._calls: dict[Request, _Call] = {}  # all that have not returned
        self._submitted: list[Request] = []  # of them those that the engine does not have yet
        self._abandoned: list[Request] = []  # to be cancelled before the next step
        self._driver: asyncio.Task | None = None
        self._engine_lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.failed: BaseException | None = None

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs coroutines as participants, in the order given, and waits for all of them.

        The caller, where it is a participant, does not hold the engine up meanwhile.

        Raises:
            Exception: the first, in the order given, that a coroutine raised, after all have ended.
        """
        parent = self._current()
        children = []
        for _ in coroutines:
            key = parent.next_key() if parent else (self._numbered,)
            self._numbered += parent is None
            children.append(Participant(self, key, parent))
            self._participants[key] = children[-1]
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
        participant = self._current()
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
        self._check_soon()
        try:
            return request, await call.done
        except asyncio.CancelledError:
            participant.waits = False
            self._abandoned.append(request)
            self._check_soon()
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
        async with self._engine_lock:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, function, self._engine)
            self._settle()
        self._check_soon()
        return result

    async def cancel_all(self) -> None:
        """Ends every generation after the step at work: each returns its tokens so far, and can be resumed."""
        async with self._engine_lock:
            self._admit()
            self._engine.cancel_all()
            self._settle()

    def forget(self, participant: Participant) -> None:
        """Takes a participant that has left off the list."""
        del self._participants[participant.key]
        self._check_soon()

    def _current(self) -> Participant | None:
        return _CURRENT.get({}).get(id(self))

    def _check_soon(self) -> None:
        """Steps after the callbacks that are ready now: tasks that were made together register before that."""
        with contextlib.suppress(RuntimeError):  # no loop runs any more
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        if self._driver is None and self._may_step():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    def _may_step(self) -> bool:
        if self.failed is not None or not (self._submitted or self._abandoned or self._engine.has_work()):
            return False
        return all(each.blocked for each in self._participants.values())

    async def _drive(self) -> None:
        """Steps until a participant is busy."""
        loop = asyncio.get_running_loop()
        try:
            while self._may_step():
                async with self._engine_lock:
                    self._admit()
                    if self._engine.has_work():
                        await loop.run_in_executor(self._thread, self._engine.step)
                    self._settle()
        except Exception as error:
            self._fail(error)
        finally:
            self._driver = None

    def _admit(self) -> None:
        """Hands over what came since the last step, in an order that does not depend on when it came."""
        for request in self._submitted:
            self._engine.enqueue(request)
        for request in self._abandoned:
            self._engine.cancel(request)
        self._submitted, self._abandoned = [], []
        self._engine.sort_waiting()

    def _settle(self) -> None:
        for call in list(self._calls.values()):
            if call.outcome is not None:
                call.settle()

    def _fail(self, error: Exception) -> None:
        self.failed = error
        for call in self._calls.values():
            failure = RuntimeError("the engine has failed")
            failure.__cause__ = error
            call.outcome = None, failure
        self._settle()


async def _within(participant: Participant, coroutine: Coroutine[Any, Any, Any]) -> Any:
    async with participant:
        return await coroutine
