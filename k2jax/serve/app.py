"""The server's routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
import hashlib
import time

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from k2jax.agents.api import DIALECTS, ApiError, Delta, Dialect, anthropic
from k2jax.agents.web.arrivals import Arrivals
from k2jax.agents.web.http import EXCEPTION_HANDLERS, json_response, respond
from k2jax.agents.web.models import show_models
from k2jax.client.keys import ApiKeys, given_key
from k2jax.serve.hosts import ServedHosts
from k2jax.serve.metrics import Metrics
from k2jax.serve.middleware import AuthMiddleware, HostMiddleware, MetricsMiddleware
from k2jax.serve.service import Job, Service


def make_app(service: Service, keys: ApiKeys, max_body_bytes: int, hosts: ServedHosts) -> Starlette:
    """Returns the application; a dialect's responses, errors included, are in its format, all others in OpenAI's.

    Without ``keys`` it answers to ``hosts`` alone.
    """
    endpoints = Endpoints(service, Metrics(service.stats), max_body_bytes)
    routes = [
        Route("/health", endpoints.health),
        Route("/metrics", endpoints.prometheus),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.models),
        *(Route(dialect.path, endpoints.generation(dialect), methods=["POST"]) for dialect in DIALECTS),
        Route(f"{anthropic.DIALECT.path}/count_tokens", endpoints.count_tokens, methods=["POST"]),
    ]
    paths = [route.path for route in routes]
    gate = Middleware(AuthMiddleware, keys=keys) if keys else Middleware(HostMiddleware, hosts=hosts)
    return Starlette(
        routes=routes,
        middleware=[Middleware(MetricsMiddleware, metrics=endpoints.metrics, endpoints=paths), gate],
        exception_handlers=EXCEPTION_HANDLERS,
    )


class Endpoints:
    """The handlers of the routes.

    Attributes:
        metrics: the counters of this server.
    """

    def __init__(self, service: Service, metrics: Metrics, max_body_bytes: int):
        """Serves the model of ``service``; longer request bodies than ``max_body_bytes`` are rejected."""
        self.metrics = metrics
        self._service, self._arrivals = service, Arrivals(max_body_bytes)

    async def health(self, request: Request) -> Response:
        """``GET /health``: 200 while the engine accepts requests, otherwise 503."""
        self._service.check()
        return json_response({"status": "ok"})

    async def prometheus(self, request: Request) -> Response:
        """``GET /metrics``: counters in Prometheus' text format."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        """``GET /v1/models`` and ``GET /v1/models/NAME``."""
        return show_models(request, self._service.card)

    async def count_tokens(self, request: Request) -> Response:
        """``POST /v1/messages/count_tokens``."""
        async with self._arrivals.of(request, _sender(request)) as arrival:
            return json_response(await arrival.parse(anthropic.count_tokens, self._service.card))

    def generation(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        """Returns the handler of a dialect's endpoint."""

        async def generate(request: Request) -> Response:
            self._service.check()
            async with self._arrivals.of(request, _sender(request)) as arrival:
                # Encoding a long prompt takes a while, in which the event loop serves other clients.
                parsed = await arrival.parse(dialect.parse, self._service.card)
            return await self._respond(dialect, self._service.start(parsed), request)

        return generate

    async def _respond(self, dialect: Dialect, job: Job, request: Request) -> Response:
        def abandon() -> None:
            self.metrics.disconnects.inc()
            job.abandoned = True
            self._service.cancel(job)

        def end() -> None:
            self._service.cancel(job)

        answer = {"deltas": self._deltas(job), "usage": job.prompt_usage, "on_end": end, "on_abandon": abandon}
        return await respond(request.receive, dialect, job.request, self._service.card, **answer)

    async def _deltas(self, job: Job) -> AsyncIterator[Delta]:
        """The deltas of a job, until one of its choices fails."""
        has_tokens = False
        async for delta in job.deltas():
            if delta.finish == "cancelled":
                raise self._service.cancellation_error(job)
            if delta.finish == "error":
                raise ApiError(500, "the generated tokens could not be decoded")
            if delta.tokens and not has_tokens:
                self.metrics.first_token.observe(time.perf_counter() - job.started)
                has_tokens = True
            yield delta


def _sender(request: Request) -> bytes:
    """Who shares a limit on request bodies: the holders of a key, or all clients of a server without keys."""
    return hashlib.sha256(given_key(request.scope["headers"]) or b"").digest()
