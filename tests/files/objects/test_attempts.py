"""Requests that fail for a while are repeated, others are not, and all of them end in one line."""

import errno

import pytest

from k2jax.files.objects.attempts import ChangedObjectError, RetryRule, ShortAnswerError, repeated
from tests.refusal import refused

RULE = RetryRule(attempts=4, first=1.0, longest=6.0)


def answered(status, code="", **headers):
    """An error as s3fs raises it for an answer of HTTP."""
    error, cause = OSError(errno.EBUSY, "Slow Down"), Exception()
    cause.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    error.__cause__ = cause
    return error


def outcome(*failures):
    """What a request gives that fails so, and the times before its repetitions [s]."""
    failures, waits = list(failures), []

    def call():
        if failures:
            raise failures.pop(0)
        return "content"

    return repeated(call, "s3://b/k", RULE, sleep=waits.append), waits


@pytest.mark.parametrize(
    "failure",
    [answered(503), answered(429), answered(500), answered(400, "RequestTimeout"), TimeoutError(),
     ConnectionResetError(), ShortAnswerError("3 bytes instead of 4"), RuntimeError("of a client")],
)  # fmt: skip
def test_what_may_pass_is_repeated_with_random_times_whose_bound_doubles(failure):
    result, waits = outcome(failure, failure, failure)
    assert result == "content"
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, (1, 2, 4), strict=True))


def test_the_store_says_when_within_a_bound():
    assert outcome(answered(503, **{"retry-after": "5"}))[1] == [5.0]
    assert outcome(answered(503, **{"retry-after": "3600"}))[1] == [6.0]
    assert outcome(answered(503, **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}))[1][0] <= 1.0


def test_attempts_are_bounded_and_end_in_one_line():
    with refused("s3://b/k failed after 4 attempts in 0 s: OSError: .*Slow Down.* .HTTP 503."):
        outcome(*[answered(503)] * 4)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (PermissionError("denied"), "s3://b/k may not be opened: 'denied'; check the credentials"),
        (answered(403), "may not be opened"),
        (answered(400, "InvalidArgument"), "failed: OSError"),
        (ChangedObjectError("it was written again"), "failed: ChangedObjectError: 'it was written again'"),
    ],
)
def test_what_the_user_must_mend_is_not_repeated(failure, words):
    with refused(words):
        outcome(failure)


def test_a_missing_object_has_its_name():
    with pytest.raises(FileNotFoundError) as found:
        outcome(FileNotFoundError("b/k"))
    assert found.value.filename == "s3://b/k"
