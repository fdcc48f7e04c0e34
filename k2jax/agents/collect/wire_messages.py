"""What processes of a collection say to each other: the scheduler and its workers, and workers and engines.

What the scheduler says and hears are short records of JSON without tokens. Requests and answers of an engine have token
ids and log-probabilities as arrays; images travel as patches of pixels, since workers have no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import enum
import json
import math
import struct
from typing import Any, NamedTuple, Self

import numpy as np

from k2jax.client import Completion, PromptTooLongError, Sampling
from k2jax.errors import InfrastructureError, UserError
from k2jax.trajectory.types import Status

Key = tuple[int, int, int]
"""(step, prompt, sample) of an episode."""


class WorkerMessage(enum.IntEnum):
    """Kinds of frames between the scheduler and a worker."""

    READY = 1  # worker: the version of the wire; it may be given leases
    LEASE = 2  # scheduler: LeaseOrder
    REVOKE = 3  # scheduler: the number of a lease to be given back
    DONE = 4  # worker: LeaseReport
    FAILED = 5  # worker: number, and why there is no trajectory
    RELEASED = 6  # worker: number of a lease that was revoked
    FATAL = 7  # worker: a mistake of the user, or a traceback; the run ends
    START = 8  # worker: StartOrder, a task that one of its leases has started
    STARTED_END = 9  # scheduler: StartedEnd, what became of it
    DROP = 10  # worker: number of a lease, number of a task that it has started and waits for no more
    CARRIED = 11  # worker: LeaseReport with the trajectory itself, see pack_carried


NUMBER = struct.Struct("<Q")
LEASE_AND_NUMBER = struct.Struct("<QI")


class RecordPlace(NamedTuple):
    """Where a trajectory lies: the shard of a worker, and the offset of its record."""

    shard: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Record:
    """The body of a frame: a JSON object of the fields, in which places and keys are lists."""

    def pack(self) -> bytes:
        """The bytes; ``unpack`` is the inverse."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Reads a record."""
        values = json.loads(data)
        for name in ("place", "paused"):
            if values.get(name) is not None:
                values[name] = RecordPlace(*values[name])
        if "key" in values:
            values["key"] = tuple(values["key"])
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class LeaseOrder(Record):
    """A lease as a worker gets it.

    Attributes:
        number: of the lease.
        key: of the episode.
        line: offset of the task's line in its file; -1 where ``text`` is the line.
        paused: where the episode continues; None to begin.
        starter: shard of the worker whose file the line is in; None for the collection's tasks.
        text: the line itself, and the trajectory is carried back; empty where both lie in files.
    """

    number: int
    key: Key
    line: int
    paused: RecordPlace | None = None
    starter: int | None = None
    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseReport(Record):
    """What became of a lease: an episode that is stored, with what a reader of progress wants to know of it.

    Attributes:
        number: of the lease.
        place: of the trajectory; None where it is carried with the report.
        status: of the trajectory; an unfinished one is paused.
        reward: its value; None where there is none.
        tokens: that were sampled.
        turns: calls of the model.
        calls: of tools.
        seconds: from the lease's arrival to the report [s].
        engine: of these, waiting for the model [s].
        environment: of these, waiting for the environment and its tools [s].
        scoring: of these, waiting for the verifier [s].
    """

    number: int
    place: RecordPlace | None
    status: Status
    reward: float | None
    tokens: int
    turns: int
    calls: int = 0
    seconds: float = 0.0
    engine: float = 0.0
    environment: float = 0.0
    scoring: float = 0.0


_REPORT_BYTES = struct.Struct("<I")


def pack_carried(report: LeaseReport, trajectory: bytes) -> list[bytes]:
    """The parts of a frame with a report and an encoded trajectory; ``unpack_carried`` is the inverse."""
    text = report.pack()
    return [_REPORT_BYTES.pack(len(text)), text, trajectory]


def unpack_carried(data: bytes) -> tuple[LeaseReport, bytes]:
    """A report and an encoded trajectory."""
    (count,) = _REPORT_BYTES.unpack_from(data)
    end = _REPORT_BYTES.size + count
    return LeaseReport.unpack(data[_REPORT_BYTES.size : end]), data[end:]


@dataclasses.dataclass(frozen=True)
class StartOrder(Record):
    """A task that a running one has started.

    Attributes:
        lease: of the running task.
        number: of the started task, among those of the lease.
        line: offset of the task's line in the file of the worker's shard.
    """

    lease: int
    number: int
    line: int


@dataclasses.dataclass(frozen=True)
class StartedEnd(Record):
    """The end of a started task.

    Attributes:
        lease: of the task that had started it.
        number: of the task, among those of the lease.
        place: of its trajectory; None where the infrastructure failed.
        reason: why it failed.
    """

    lease: int
    number: int
    place: RecordPlace | None
    reason: str = ""


_FINISHES = ("stop", "length", "cancelled")
_REQUEST = struct.Struct("<QIIiI?")  # number, bytes of the sampling, prompt, resumed (-1: none), images, reports
_TOKENS = struct.Struct("<QI")  # number, tokens
_SCORE = struct.Struct("<QIII")  # number, tokens, first that is scored, images
_IMAGE = struct.Struct("<I3II16s")  # first token, grid, numbers of a patch, digest
# Number, finish, whether free log-probabilities follow, tokens, tokens with experts, expert layers, active experts.
_COMPLETION = struct.Struct("<QB?IIHH")
_ERROR = struct.Struct("<QB")


class EngineMessage(enum.IntEnum):
    """Kinds of frames between a worker and an engine."""

    REQUEST = 1
    CANCEL = 2
    COMPLETION = 3
    ERROR = 4
    PRESSURE = 5  # engine: EngineLoad, from time to time
    SCORE = 6
    SCORES = 7  # engine: number, log-probabilities float32
    LONGEST = 8  # worker: number; engine: number, and the longest sequence [tokens], 0 where that is not known
    TOKENS = 9  # engine: number, new tokens of a request that reports them
    END = 10  # worker: number of such a request that ends with its next token
    HELLO = 11  # the first frame of either side, see engine_address
    JOIN = 12  # an engine that has opened the connection, to a run: engine_states.EngineJoin
    STATE = 13  # such an engine: its EngineState
    RUN_ENDED = 14  # the run: such an engine ends, too
    BECOME = 15  # the run: the engine is to be another role's, engine_states.EngineRole


@dataclasses.dataclass(frozen=True)
class EngineLoad(Record):
    """How busy an engine is.

    Attributes:
        pages: share of the cache's pages that running sequences hold.
        running: sequences that run.
        waiting: sequences that wait for a slot or for pages.
        preemptions: sequences that had to give their pages to others, so far; see ``EngineStats``.
    """

    pages: float
    running: int
    waiting: int
    preemptions: int


class SentImage(NamedTuple):
    """An image of a prompt, as ``inference.media.PlacedChunk`` has it.

    Attributes:
        start: index of the first of its tokens.
        grid: frames, and the height and width of each in patches.
        pixels: float32 ``[patches, numbers of a patch]``.
        digest: 16 bytes of its content.
    """

    start: int
    grid: tuple[int, int, int]
    pixels: np.ndarray
    digest: bytes


def _pack_images(media: Sequence[Any]) -> list[bytes]:
    parts = []
    for placed in media:
        pixels = np.ascontiguousarray(placed.chunk.pixels, "<f4")
        parts += [_IMAGE.pack(placed.start, *placed.chunk.grid, pixels.shape[1], placed.digest), pixels.tobytes()]
    return parts


def _unpack_images(data: bytes, begin: int, count: int) -> tuple[list[SentImage], int]:
    """Images from byte ``begin`` on, and where they end."""
    images = []
    for _ in range(count):
        start, *grid, width, digest = _IMAGE.unpack_from(data, begin)
        pixels = np.frombuffer(data, "<f4", math.prod(grid) * width, begin + _IMAGE.size).reshape(-1, width)
        images.append(SentImage(start, tuple(grid), pixels, digest))
        begin += _IMAGE.size + pixels.nbytes
    return images, begin


class EngineRequest(NamedTuple):
    """A request of a completion.

    Attributes:
        number: of the request, on its connection.
        prompt: int32 ``[P]``.
        sampling: how tokens are chosen.
        resume: the completion that continues; None to begin.
        images: of the prompt.
        reports: whether its tokens are sent as they come, before the completion.
    """

    number: int
    prompt: np.ndarray
    sampling: Sampling
    resume: Completion | None = None
    images: Sequence[SentImage] = ()
    reports: bool = False


def pack_request(
    number: int,
    prompt: Sequence[int],
    sampling: Sampling,
    resume: Completion | None,
    media: Sequence[Any] = (),
    reports: bool = False,
) -> bytes:
    """A request; ``unpack_request`` is the inverse."""
    text = json.dumps(vars(sampling)).encode()
    prompt_P = np.asarray(prompt, "<i4")
    resumed = -1 if resume is None else len(resume.tokens)
    head = _REQUEST.pack(number, len(text), len(prompt_P), resumed, len(media), reports)
    parts = [head, text, prompt_P.tobytes(), *_pack_images(media)]
    return b"".join(parts if resume is None else [*parts, pack_completion(number, resume)])


def unpack_request(data: bytes) -> EngineRequest:
    """Reads a request."""
    number, text, prompt, resumed, images, reports = _REQUEST.unpack_from(data)
    begin = _REQUEST.size + text
    sampling = Sampling.from_json(json.loads(data[_REQUEST.size : begin]))
    prompt_P = np.frombuffer(data, "<i4", prompt, begin)
    media, begin = _unpack_images(data, begin + prompt_P.nbytes, images)
    resume = None if resumed < 0 else unpack_completion(data[begin:])[1]
    return EngineRequest(number, prompt_P, sampling, resume, media, reports)


def pack_tokens(number: int, tokens: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> bytes:
    """New tokens of a request; ``unpack_tokens`` is the inverse."""
    arrays = zip((tokens, logprobs, versions), ("<i4", "<f4", "<i8"), strict=True)
    return b"".join([_TOKENS.pack(number, len(tokens)), *(np.asarray(*array).tobytes() for array in arrays)])


def unpack_tokens(data: bytes) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Number, tokens int32 ``[T]``, log-probabilities float32 ``[T]`` and versions of the weights int64 ``[T]``."""
    number, count = _TOKENS.unpack_from(data)
    tokens_T = np.frombuffer(data, "<i4", count, _TOKENS.size)
    logprobs_T = np.frombuffer(data, "<f4", count, _TOKENS.size + tokens_T.nbytes)
    return number, tokens_T, logprobs_T, np.frombuffer(data, "<i8", count, _TOKENS.size + 2 * tokens_T.nbytes)


class ScoreRequest(NamedTuple):
    """A request of the log-probabilities of given tokens.

    Attributes:
        number: of the request, on its connection.
        ids: int32 ``[T]``.
        start: number of the first token that is scored.
        images: of the tokens.
    """

    number: int
    ids: np.ndarray
    start: int
    images: Sequence[SentImage] = ()


def pack_score(number: int, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> bytes:
    """A request of log-probabilities; ``unpack_score`` is the inverse."""
    ids_T = np.asarray(ids, "<i4")
    return b"".join([_SCORE.pack(number, len(ids_T), start, len(media)), ids_T.tobytes(), *_pack_images(media)])


def unpack_score(data: bytes) -> ScoreRequest:
    """Reads a request of log-probabilities."""
    number, count, start, images = _SCORE.unpack_from(data)
    ids_T = np.frombuffer(data, "<i4", count, _SCORE.size)
    return ScoreRequest(number, ids_T, start, _unpack_images(data, _SCORE.size + ids_T.nbytes, images)[0])


def pack_completion(number: int, completion: Completion) -> bytes:
    """An answer; ``unpack_completion`` is the inverse."""
    experts = completion.experts
    shape = (0, 0, 0) if experts is None else experts.shape
    free = completion.free_logprobs
    has_free, count = free is not None, len(completion.tokens)
    head = _COMPLETION.pack(number, _FINISHES.index(completion.finish), has_free, count, *shape)
    arrays = [*zip(completion[:3], ("<i4", "<f4", "<i8"), strict=True)]
    arrays += [(free, "<f4")] if has_free else []
    arrays += [] if experts is None else [(experts, "<i2")]
    return b"".join([head, *(np.ascontiguousarray(array, kind).tobytes() for array, kind in arrays)])


def unpack_completion(data: bytes) -> tuple[int, Completion]:
    """Number and completion."""
    number, finish, has_free, count, fed, layers, active = _COMPLETION.unpack_from(data)
    begin, arrays = _COMPLETION.size, []
    for kind in ("<i4", "<f4", "<i8", *(["<f4"] if has_free else [])):
        arrays.append(np.frombuffer(data, kind, count, begin))
        begin += arrays[-1].nbytes
    experts = np.frombuffer(data, "<i2", fed * layers * active, begin).reshape(fed, layers, active) if layers else None
    return number, Completion(*arrays[:3], _FINISHES[finish], experts, arrays[3] if has_free else None)


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
