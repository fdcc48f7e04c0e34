"""Requests that fail for a while: which are repeated, when, and what a user is told when they still fail.

A store throttles (429, 503), fails (5xx), times out, resets a connection or ends an answer early. All of that is
repeated, after a random time whose bound doubles, or after the time that the store asks for. What the user must mend,
such as a missing object or a refused access, is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import random
import time
from typing import Any, NamedTuple, TypeVar

from k2jax.errors import UserError, abbreviate

Result = TypeVar("Result")
_FINAL = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, ImportError, UserError)
_DAMAGED = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
_NO_ACCESS = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "InvalidRegionError")


class RetryRule(NamedTuple):
    """How often a request is repeated.

    Attributes:
        attempts: most attempts.
        first: bound of the first wait [s], which doubles with each further one.
        longest: bound of every wait [s], of one that the store asks for too.
    """

    attempts: int = 8
    first: float = 0.2
    longest: float = 20.0


ONCE = RetryRule(attempts=1)


class ShortAnswerError(OSError):
    """An answer that has not the length that was asked for."""


class ChangedObjectError(OSError):
    """An object that is no longer the one whose size and version were read."""


def repeated(
    call: Callable[[], Result],
    where: str,
    rule: RetryRule,
    failed: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Calls until it succeeds.

    Args:
        call: one request.
        where: the URL, for messages.
        rule: how often it is repeated.
        failed: is told of each failure that is followed by another attempt.
        sleep: waits.

    Raises:
        UserError: it did not succeed; in one line that says why.
        FileNotFoundError: there is no such object.
    """
    began = time.monotonic()
    for attempt, wait in enumerate(_waits(rule), start=1):
        try:
            return call()
        except Exception as error:  # the clients of stores raise types of their own
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(2, "there is no such object", where) from None
            if _is_final(error) or attempt == rule.attempts:
                spent = f" after {attempt} attempts in {time.monotonic() - began:.0f} s" if attempt > 1 else ""
                raise _told(where, error, spent) from None
            failed()
            sleep(min(rule.longest, max(wait, _asked_for(error))))
    raise AssertionError("a rule has at least one attempt")


def _is_final(error: Exception) -> bool:
    """Whether the same request would fail again."""
    if isinstance(error, (*_FINAL, ChangedObjectError)) or type(error).__name__ in _NO_ACCESS:
        return True
    return _status(error) in (400, 401, 403, 404, 412) and not _in_transit(error)


def _in_transit(error: Exception) -> bool:
    """Whether a store calls a request wrong (400) that was damaged or delayed on its way."""
    return any(str((each.response.get("Error") or {}).get("Code")) in _DAMAGED for each in _with_response(error))


def _waits(rule: RetryRule) -> Iterator[float]:
    """Random times before the next attempts [s]: processes that failed together do not come back together."""
    for attempt in range(rule.attempts):
        yield random.uniform(0.5, 1.0) * min(rule.longest, rule.first * 2**attempt)


def _with_response(error: BaseException) -> list[Any]:
    """The error, or its cause, that has botocore's record of the answer."""
    return [each for each in (error, error.__cause__) if isinstance(getattr(each, "response", None), dict)]


def _response(error: BaseException) -> dict:
    """What botocore keeps of the answer."""
    return next((each.response.get("ResponseMetadata") or {} for each in _with_response(error)), {})


def _status(error: BaseException) -> int:
    """The number of an answer of HTTP; 0 where there was none."""
    status = _response(error).get("HTTPStatusCode") or getattr(error, "code", 0) or getattr(error, "status", 0)
    return status if isinstance(status, int) else 0


def _asked_for(error: BaseException) -> float:
    """The seconds after which the store asks to be asked again; 0 where it does not say."""
    headers = _response(error).get("HTTPHeaders") or getattr(error, "headers", None) or {}
    try:
        return float(headers.get("retry-after") or headers.get("Retry-After") or 0)
    except (AttributeError, TypeError, ValueError):  # a date, or no headers
        return 0.0


def _told(where: str, error: Exception, spent: str) -> UserError:
    if isinstance(error, UserError):
        return error
    words = " ".join(str(error).split()) or type(error).__name__
    status = f" (HTTP {_status(error)})" if _status(error) else ""
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_ACCESS or _status(error) in (401, 403):
        return UserError(f"{where} may not be opened: {abbreviate(words, 200)}{status}; check the credentials")
    return UserError(f"{where} failed{spent}: {type(error).__name__}: {abbreviate(words, 200)}{status}")
