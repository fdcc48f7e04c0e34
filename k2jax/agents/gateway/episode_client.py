"""The model as one episode's agent uses it: through the episode's own place among those that share an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
import contextlib
import contextvars
import time
from typing import Any

import numpy as np

from k2jax.client import Client, Completion, OnToken, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError
from k2jax.text.media_reading import MediaReader, MediaReading
from k2jax.text.messages import Message


class EpisodeClient(Client):
    """Calls a client in the context of whoever made this object.

    Requests of an agent are answered in tasks of a server. A client that steps an engine in lockstep with episodes
    knows an episode by its context. Parallel requests of an agent are answered at the same time, except by a client
    whose ``one_at_a_time`` is true: in lockstep, when a second request joins the engine must not depend on timing.

    Args:
        client: generates.

    Attributes:
        processor: processor time of the agent so far [s]; none is known until somebody sets it.
        failed: gets the exception with which the client failed.
        refused: why a prompt was refused, such as its length; None where none was.
    """

    def __init__(self, client: Client):
        self._client, self._context = client, contextvars.copy_context()
        self._turn = asyncio.Lock() if client.one_at_a_time else contextlib.nullcontext()
        self._waiting, self._since, self._waited = 0, 0.0, 0.0
        self._worked = 0.0  # processor time of the agent when it began to wait
        self.processor: Callable[[], float] = lambda: 0.0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused: str | None = None

    @contextlib.contextmanager
    def noticing(self, kind: type[UserError]) -> Iterator[None]:
        """Keeps an error of this kind as the reason why a prompt was refused."""
        try:
            yield
        except kind as error:
            self.refused = str(error)
            raise

    @property
    def waited(self) -> float:
        """Time in which at least one answer was awaited, without the processor time of the agent meanwhile [s].

        A thread that always asks does not stop the clock of another one that works.
        """
        return self._waited + (self._idle() if self._waiting else 0.0)

    def _idle(self) -> float:
        worked = max(0.0, self.processor() - self._worked)
        return max(0.0, time.monotonic() - self._since - worked)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates after a prompt; see ``Client.generate``."""
        options = {"resume": resume, "on_token": on_token, "media": media}
        return await self._ask(lambda: self._client.generate(prompt, sampling, **options))

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities of given tokens; see ``Client.score``."""
        return await self._ask(lambda: self._client.score(ids, start, media))

    async def longest_sequence(self) -> int | None:
        """See ``Client.longest_sequence``."""
        return await self._client.longest_sequence()

    async def _ask(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if not self._waiting:
            self._since, self._worked = time.monotonic(), self.processor()
        self._waiting += 1
        try:
            async with self._turn:
                with self.noticing(UserError):
                    return await asyncio.create_task(call(), context=self._context)
        except (RuntimeError, InfrastructureError) as error:
            if not self.failed.done():
                self.failed.set_exception(error)
                self.failed.exception()  # whoever waits sees it; nobody has to
            raise
        finally:
            if self._waiting == 1:
                self._waited += self._idle()
            self._waiting -= 1


class EpisodeMedia:
    """Reads the images of an agent's requests; a client notices what is too much. See ``text.media_reading``."""

    def __init__(self, reader: MediaReader, client: EpisodeClient):
        self._reader, self._client = reader, client

    def start(self) -> MediaReading:
        """Begins to read the images of a request."""
        return _EpisodeReading(self._reader.start(), self._client)


class _EpisodeReading:
    def __init__(self, reading: MediaReading, client: EpisodeClient):
        self._reading, self._client = reading, client

    def read(self, message: Message) -> Message:
        with self._client.noticing(PromptTooLongError):
            return self._reading.read(message)

    def place(self, tokens: Sequence[int]) -> tuple[Any, ...]:
        with self._client.noticing(PromptTooLongError):
            return self._reading.place(tokens)
