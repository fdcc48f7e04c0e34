"""The model as one episode's agent uses it: through the episode's own place among those that share an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
import contextvars
import time
from typing import Any

from k2jax.client import Client, Completion, OnToken, Sampling
from k2jax.errors import InfrastructureError, UserError


class EpisodeClient:
    """Calls a client in the context of whoever made this object.

    Requests of an agent are answered in tasks of a server. A client that steps an engine in lockstep with episodes
    knows an episode by its context. Parallel requests of an agent are answered at the same time, except by a client
    whose ``one_at_a_time`` is true: in lockstep, when a second request joins the engine must not depend on timing.

    Args:
        client: generates.

    Attributes:
        failed: gets the exception with which the client failed.
        refused: why the client has refused a prompt, such as its length; None where it has not.
    """

    def __init__(self, client: Client):
        self._client, self._context = client, contextvars.copy_context()
        self._turn = asyncio.Lock() if getattr(client, "one_at_a_time", False) else contextlib.nullcontext()
        self._waiting, self._since, self._waited = 0, 0.0, 0.0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: str | None = None

    @property
    def waited(self) -> float:
        """Time in which at least one answer was awaited [s]."""
        return self._waited + (time.monotonic() - self._since if self._waiting else 0.0)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        **images: Any,
    ) -> Completion:
        """Generates after a prompt, with ``media`` where it has images; see ``Client.generate``."""
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += 1
        try:
            async with self._turn:
                call = self._client.generate(prompt, sampling, resume=resume, on_token=on_token, **images)
                return await asyncio.create_task(call, context=self._context)
        except UserError as error:
            self.refused = str(error)
            raise
        except (RuntimeError, InfrastructureError) as error:
            if not self.failed.done():
                self.failed.set_exception(error)
                self.failed.exception()  # whoever waits sees it; nobody has to
            raise
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._waited += time.monotonic() - self._since
