"""Exceptions of handlers as responses, in the format of the dialect that was asked."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from k2jax.agents.api import ApiError
from k2jax.agents.web.http import error_response
from k2jax.errors import abbreviate


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
