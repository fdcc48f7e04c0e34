"""Errors that a client receives instead of a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        message: one line for people.
        param: the request field that is wrong, if there is one.
        code: short identifier for programs.
        headers: further HTTP headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body in OpenAI's format."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


def unavailable(message: str) -> ApiError:
    """Status 503: the engine has failed or the server is shutting down."""
    return ApiError(503, message, code="service_unavailable", headers={"Retry-After": "5"})


def bad_request(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Status 400: the field ``param`` is wrong."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str | None = None) -> ApiError:
    """Status 400: the API defines the field ``param``, but this server does not support it."""
    return bad_request(param, message or f"{param} is not supported by this server", "unsupported")
