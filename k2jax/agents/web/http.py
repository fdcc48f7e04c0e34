"""Responses: JSON, errors as each dialect has them, answers whole and as server-sent events, disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
import contextlib
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from k2jax.agents.api import (
    DIALECTS,
    ApiError,
    Delta,
    Dialect,
    DialectResponse,
    GenerationRequest,
    ModelCard,
    PromptUsage,
)
from k2jax.agents.api.dialect import openai_error
from k2jax.agents.api.encoding import dump_json, encode_event
from k2jax.errors import abbreviate

KEEP_ALIVE_SECONDS = 15.0
"""Silence of a stream after which the client gets bytes that say nothing: the least patient agent waits 60 s [s]."""


def json_response(value: Any, status: int = 200, headers: Any = None) -> Response:
    """Returns a JSON response."""
    return Response(dump_json(value), status, headers, media_type="application/json")


def error_response(error: ApiError, path: str = "") -> Response:
    """Returns the response of an error, in the format of the dialect that ``path`` belongs to, else in OpenAI's."""
    path = path.removesuffix("/count_tokens")
    body = next((dialect.error_body for dialect in DIALECTS if path.endswith(dialect.path)), openai_error)
    return json_response(body(error), error.status, error.headers)


class EventStream(Response):
    """A response of server-sent events.

    Args:
        events: the values of the events, see ``encode_event``; those of a list are sent together.
        keep_alive: sent while there are none, see ``KEEP_ALIVE_SECONDS``: the client must not take a model that is held
            between two iterations of a training, or that is slow, for one that is gone.
        on_end: called when everything is sent or the client has disconnected.
        on_abandon: called if the client disconnects before the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[Sequence[Any]],
        keep_alive: bytes,
        on_end: Callable[[], None],
        on_abandon: Callable[[], None],
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._keep_alive = events, keep_alive
        self._on_end, self._on_abandon = on_end, on_abandon
        self._last_sent = 0.0  # on the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with on_disconnect(receive, self._on_abandon), background(self._keep_alive_on(send)):
                async for values in self._events:
                    if body := b"".join(map(encode_event, values)):
                        await self._send(send, body)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._on_end()

    async def _send(self, send: Send, body: bytes) -> None:
        self._last_sent = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _keep_alive_on(self, send: Send) -> None:
        """Breaks every silence, until it is cancelled."""
        clock = asyncio.get_running_loop().time
        self._last_sent = clock()
        while True:
            await asyncio.sleep(self._last_sent + KEEP_ALIVE_SECONDS - clock())
            if clock() - self._last_sent >= KEEP_ALIVE_SECONDS:
                await self._send(send, self._keep_alive)


async def respond(
    receive: Receive,
    dialect: Dialect,
    request: GenerationRequest,
    card: ModelCard,
    *,
    deltas: AsyncIterator[Delta],
    usage: Callable[[], PromptUsage],
    on_end: Callable[[], None],
    on_abandon: Callable[[], None],
) -> Response:
    """Returns the response to a request, whole or as a stream.

    A stream is kept alive while the model says nothing; a client that wants the answer whole waits in silence.

    Args:
        receive: of the HTTP request, whose body has been read.
        dialect: format of the response.
        request: what the client asks for.
        card: the model.
        deltas: of all choices, until each has ended; raises ApiError where one fails.
        usage: tokens of the prompts, asked for at the end.
        on_end: called when everything is there or sent, or the client has disconnected.
        on_abandon: called if the client disconnects before the end.

    Raises:
        ApiError: that of ``deltas``, before anything is sent.
    """
    response = dialect.respond(request, card)
    if request.stream:
        return EventStream(_events(dialect, response, deltas, usage), dialect.keep_alive, on_end, on_abandon)
    try:
        async with on_disconnect(receive, on_abandon):
            async for delta in deltas:
                response.add(delta)
    finally:
        on_end()
    return json_response(response.body(usage()))


async def _events(
    dialect: Dialect, response: DialectResponse, deltas: AsyncIterator[Delta], usage: Callable[[], PromptUsage]
) -> AsyncIterator[Sequence[Any]]:
    """The events of a stream, those of a delta together; an error is the last event, without the end mark."""
    try:
        async for delta in deltas:
            yield response.chunks(delta)
    except ApiError as error:
        yield [dialect.error_event(error)]
        return
    yield response.closing_chunks(usage())


@contextlib.asynccontextmanager
async def on_disconnect(receive: Receive, callback: Callable[[], None]) -> AsyncIterator[None]:
    """Calls ``callback`` if the client disconnects inside the block. The request's body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        callback()

    async with background(watch()):
        yield


@contextlib.asynccontextmanager
async def background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs a coroutine beside the block, and cancels it at its end."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.url.path)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    route = f"{request.method} {abbreviate(request.url.path)}"
    messages = {404: f"there is no route {route}", 405: f"{route} is not allowed"}
    message = messages.get(error.status_code, error.detail)
    return error_response(ApiError(error.status_code, message, headers=error.headers), request.url.path)


async def _internal_error(request: Request, error: Exception) -> Response:
    """An unexpected exception is a bug: its traceback is logged, and the client receives no details."""
    return error_response(ApiError(500, "internal server error; the server's log has the details"), request.url.path)


EXCEPTION_HANDLERS = {ApiError: _api_error, HTTPException: _http_error, Exception: _internal_error}
"""Handlers of an application: exceptions as responses, in the format of the dialect that was asked."""
