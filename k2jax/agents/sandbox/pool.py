"""A pool of sandboxes: some are open before anybody asks, no more than a limit exist, and none is ever lost.

A lease is an ``async with``: whatever happens in it, cancellation included, its sandbox comes back. The reset policy is
what happens then: ``fresh`` closes it and opens another, so that nobody meets what another left; ``clean`` ends its
programs and deletes its files, and closes it where that fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
import contextlib
from typing import Any, Literal

from k2jax.agents.sandbox.namespaces import NamespaceSandbox
from k2jax.agents.sandbox.types import Sandbox, SandboxBackend, SandboxError, SandboxSpec
from k2jax.errors import UserError

Reset = Literal["fresh", "clean"]
_CLEAN = (
    "/bin/sh",
    "-c",
    "cd / && chmod -R u+rwx work tmp dev/shm && find work tmp dev/shm -mindepth 1 -delete && chmod 755 work && "
    "chmod 1777 tmp dev/shm",
)
_CLEANING = 10.0
"""Time limit of deleting files [s]; after it the sandbox is closed instead."""


class SandboxPool:
    """Sandboxes of one spec; ``async with`` closes them all.

    Attributes:
        opened: how many sandboxes have been opened so far.
        leased: how many are in use.
    """

    def __init__(
        self, backend: SandboxBackend, spec: SandboxSpec, *, warm: int = 4, most: int = 64, reset: Reset = "fresh"
    ):
        """Describes a pool; ``async with`` begins to open its warm sandboxes.

        Args:
            backend: opens them.
            spec: of each.
            warm: how many are kept open for the next leases.
            most: how many may exist at once; leases beyond wait, the first come first served.
            reset: see above.

        Raises:
            UserError: ``most`` is not positive, or below ``warm``; no such policy.
        """
        if not 0 <= warm <= most or most < 1:
            raise UserError(
                f"a pool of {most} sandboxes cannot keep {warm} warm: it needs 0 <= warm <= most, most >= 1"
            )
        if reset not in ("fresh", "clean"):
            raise UserError(f"no reset policy {reset!r}: fresh or clean")
        self._backend, self._spec, self._reset = backend, spec, reset
        self._warm, self._most = warm, most
        self._idle: deque[Sandbox] = deque()
        self._waiting: deque[asyncio.Future[Sandbox | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._existing = self._filling = 0
        self._closed = False
        self.opened = self.leased = 0

    async def __aenter__(self) -> SandboxPool:
        self._fill()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def idle(self) -> int:
        """How many sandboxes are open and free."""
        return len(self._idle)

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Sandbox]:
        """A sandbox for the time of an ``async with``.

        Raises:
            SandboxError: it cannot be opened, or the pool is closed.
        """
        sandbox = await self._take()
        self.leased += 1
        try:
            yield sandbox
        finally:
            self.leased -= 1
            await asyncio.shield(self._in_background(self._give_back(sandbox)))

    async def close(self) -> None:
        """Closes all sandboxes that are not leased, and the others when their leases end."""
        self._closed = True
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(SandboxError("the pool is closed"))
        while self._tasks or self._idle:
            while self._idle:
                await self._drop(self._idle.popleft())
            if self._tasks:
                await asyncio.wait(list(self._tasks))

    async def _take(self) -> Sandbox:
        if self._closed:
            raise SandboxError("the pool is closed")
        if self._idle:
            sandbox = self._idle.popleft()
            self._fill()
            return sandbox
        if self._existing < self._most:
            self._existing += 1
            return await self._open()
        waiter: asyncio.Future[Sandbox | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            given = await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())
            raise
        return given if given is not None else await self._open()

    def _pass_on(self, sandbox: Sandbox | None, *, refill: bool = True) -> None:
        """Gives a free sandbox, or room for one that is None, to whoever has waited longest.

        Args:
            sandbox: the sandbox, or None.
            refill: whether room that nobody waits for is used for another warm sandbox.
        """
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(sandbox)
                return
        if sandbox is None:
            self._existing -= 1
            if refill:
                self._fill()
        else:
            self._idle.append(sandbox)

    async def _open(self) -> Sandbox:
        """A new sandbox in room that is this caller's."""
        try:
            sandbox = await self._backend.open(self._spec)
        except BaseException:
            self._pass_on(None, refill=False)  # a backend that fails would be asked again at once, for ever
            raise
        self.opened += 1
        return sandbox

    async def _give_back(self, sandbox: Sandbox) -> None:
        kept = False
        try:
            if self._reset == "clean" and not self._closed:
                with contextlib.suppress(SandboxError):
                    kept = await _clean(sandbox)
        finally:
            if kept and not self._closed:
                self._pass_on(sandbox)
            else:
                await self._drop(sandbox)

    async def _drop(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.close()
        finally:
            self._pass_on(None)

    def _fill(self) -> None:
        """Opens sandboxes in the background until enough are warm or there is no room."""
        while not self._closed and len(self._idle) + self._filling < self._warm and self._existing < self._most:
            self._filling += 1
            self._existing += 1
            self._in_background(self._add())

    async def _add(self) -> None:
        try:
            sandbox = await self._open()
        except (SandboxError, UserError):  # whoever opens the next one will meet it
            return
        finally:
            self._filling -= 1
        self._pass_on(sandbox)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _clean(sandbox: Sandbox) -> bool:
    """Whether a sandbox is as if nobody had used it."""
    if isinstance(sandbox, NamespaceSandbox):  # those of other backends end everything with each command
        await sandbox.end_all()
    result = await sandbox.exec(_CLEAN, cwd="/", timeout=_CLEANING)
    return result.code == 0 and not any([await sandbox.list(place) for place in ("/work", "/tmp", "/dev/shm")])
