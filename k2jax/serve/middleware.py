"""ASGI middleware: API keys or, without them, the hosts that are answered, and a count of the responses."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from k2jax.agents.api.api_error import ApiError
from k2jax.agents.web.http import error_response
from k2jax.client.keys import ApiKeys, given_key
from k2jax.serve.hosts import ServedHosts
from k2jax.serve.metrics import Metrics


class MetricsMiddleware:
    """Counts responses by endpoint and status; paths without a route count as ``other``."""

    def __init__(self, app: ASGIApp, metrics: Metrics, endpoints: Collection[str]):
        self._app, self._metrics, self._endpoints = app, metrics, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        endpoint = scope["path"] if scope["path"] in self._endpoints else "other"

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count_response(endpoint, message["status"])
            await send(message)

        await self._app(scope, receive, count_and_send)


class AuthMiddleware:
    """Rejects requests without a valid API key, before their bodies are read; ``/health`` needs none."""

    def __init__(self, app: ASGIApp, keys: ApiKeys):
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        public = scope["type"] != "http" or scope["path"] == "/health"
        if public or self._keys.accept(given_key(scope["headers"])):
            await self._app(scope, receive, send)
            return
        message, headers = "a valid API key is needed: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"}
        error = ApiError(401, message, code="invalid_api_key", headers=headers)
        await error_response(error, scope["path"])(scope, receive, send)


class HostMiddleware:
    """Rejects requests of pages of the web, before their bodies are read; ``/health`` is everybody's.

    It stands in the place of ``AuthMiddleware`` where there are no keys.
    """

    def __init__(self, app: ASGIApp, hosts: ServedHosts):
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        public = scope["type"] != "http" or scope["path"] == "/health"
        if public or not (problem := self._hosts.problem(scope["headers"])):
            await self._app(scope, receive, send)
            return
        error = ApiError(403, f"{problem}; see --allowed_hosts", code="host_not_allowed")
        await error_response(error, scope["path"])(scope, receive, send)
