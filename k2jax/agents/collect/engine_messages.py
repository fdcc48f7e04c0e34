"""Requests of a client and answers of an engine as frames: token ids and log-probabilities as arrays, never as JSON."""

from __future__ import annotations

from collections.abc import Sequence
import enum
import json
import struct
from typing import NamedTuple

import numpy as np

from k2jax.client import Completion, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError

_FINISHES = ("stop", "length", "cancelled")
_REQUEST = struct.Struct("<QIIi")  # number, bytes of the sampling, prompt tokens, resumed tokens (-1: none)
_COMPLETION = struct.Struct("<QBIIHH")  # number, finish, tokens, tokens with experts, expert layers, active experts
_ERROR = struct.Struct("<QB")
_PRESSURE = struct.Struct("<dIIQ")


class EngineSaid(enum.IntEnum):
    """Kinds of frames."""

    REQUEST = 1
    CANCEL = 2
    COMPLETION = 3
    ERROR = 4
    PRESSURE = 5  # engine: EngineLoad, from time to time


class EngineLoad(NamedTuple):
    """How busy an engine is.

    Attributes:
        pages: share of the cache's pages that running sequences hold.
        running: sequences that run.
        waiting: sequences that wait for a slot or for pages.
        preemptions: sequences that had to give their pages back, so far.
    """

    pages: float
    running: int
    waiting: int
    preemptions: int

    def pack(self) -> bytes:
        """The record; ``unpack`` is the inverse."""
        return _PRESSURE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> EngineLoad:
        """Reads a record."""
        return cls(*_PRESSURE.unpack(data))


def pack_request(number: int, prompt: Sequence[int], sampling: Sampling, resume: Completion | None) -> bytes:
    """A request; ``unpack_request`` is the inverse."""
    text = json.dumps(vars(sampling)).encode()
    prompt_P = np.asarray(prompt, "<i4")
    known = -1 if resume is None else len(resume.tokens)
    parts = [_REQUEST.pack(number, len(text), len(prompt_P), known), text, prompt_P.tobytes()]
    return b"".join(parts if resume is None else [*parts, pack_completion(number, resume)])


def unpack_request(data: bytes) -> tuple[int, np.ndarray, Sampling, Completion | None]:
    """Number, prompt int32 ``[P]``, sampling and the completion that goes on."""
    number, text, prompt, known = _REQUEST.unpack_from(data)
    begin = _REQUEST.size + text
    values = json.loads(data[_REQUEST.size : begin])
    sampling = Sampling(**values | {"stop_tokens": tuple(values["stop_tokens"])})
    prompt_P = np.frombuffer(data, "<i4", prompt, begin)
    return number, prompt_P, sampling, None if known < 0 else unpack_completion(data[begin + 4 * prompt :])[1]


def pack_completion(number: int, completion: Completion) -> bytes:
    """An answer; ``unpack_completion`` is the inverse."""
    experts = completion.experts
    shape = (0, 0, 0) if experts is None else experts.shape
    head = _COMPLETION.pack(number, _FINISHES.index(completion.finish), len(completion.tokens), *shape)
    arrays = zip(completion[:3], ("<i4", "<f4", "<i8"), strict=True)
    parts = [np.ascontiguousarray(array, kind).tobytes() for array, kind in arrays]
    return b"".join([head, *parts, *([] if experts is None else [np.ascontiguousarray(experts, "<i2").tobytes()])])


def unpack_completion(data: bytes) -> tuple[int, Completion]:
    """Number and completion."""
    number, finish, count, fed, layers, active = _COMPLETION.unpack_from(data)
    begin, arrays = _COMPLETION.size, []
    for kind in ("<i4", "<f4", "<i8"):
        arrays.append(np.frombuffer(data, kind, count, begin))
        begin += arrays[-1].nbytes
    experts = np.frombuffer(data, "<i2", fed * layers * active, begin).reshape(fed, layers, active) if layers else None
    return number, Completion(*arrays, _FINISHES[finish], experts)


class RequestFault(enum.IntEnum):
    """Why a request has no answer."""

    ENGINE = 0  # the engine has failed
    REQUEST = 1  # a mistake in the request
    TOO_LONG = 2  # its prompt is too long


def pack_error(number: int, error: Exception) -> bytes:
    """Why a request has no answer: a mistake in it, or a failure of the engine."""
    by_user = isinstance(error, UserError) and not isinstance(error, InfrastructureError)
    fault = RequestFault.TOO_LONG if isinstance(error, PromptTooLongError) else RequestFault(by_user)
    return _ERROR.pack(number, fault) + str(error).encode()


def unpack_error(data: bytes) -> tuple[int, RequestFault, str]:
    """Number, what is to blame, and the message."""
    number, fault = _ERROR.unpack_from(data)
    return number, RequestFault(fault), data[_ERROR.size :].decode(errors="replace")
