"""A client of OpenAI-compatible servers. It needs httpx, the extra ``client``, which is imported when it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
import json
import re
import types
from typing import Any, Self, TypeVar

import numpy as np

from k2jax.client.types import (
    UNKNOWN_VERSION,
    Client,
    Completion,
    OnToken,
    PromptTooLongError,
    Sampling,
    check_scored,
    new_completion,
    refuse_media,
)
from k2jax.errors import InfrastructureError, UserError

KEPT_CONNECTIONS = 64
"""Connections to a server that are kept for later requests while no request needs them."""
LARGEST_ANSWER = 1 << 27
"""Bytes of a server's answer that are read: a million tokens with their log-probabilities are fewer."""
_LARGEST_ERROR = 1 << 16
_LONGEST_WORDS = 1000
_TOO_LONG = re.compile(r"maximum context length|(prompt|messages\[\d+\]) is too long|this model's longest sequence is")
_Read = TypeVar("_Read")


class ServerFailedError(UserError, InfrastructureError):
    """A server does not answer, or not as it should: one line for a command, and a masked sample for a run."""


class Endpoint:
    """Requests to an OpenAI-compatible server, sent again where that may help.

    As many are under way as the caller has asked for, each on a connection of its own.

    Args:
        url: of the server, without ``/v1``.
        model: the name that the server knows the model by.
        api_key: sent as a bearer token; what a server says of it is not repeated.
        timeout: longest silence of the server [s].
        attempts: most times that a request is sent; connection errors, status 429 and 5xx are tried again.
        backoff: pause before the second attempt [s]; it doubles with every further one.
        key_header: name of a header that has the key instead.
        headers: of every request.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        attempts: int = 5,
        backoff: float = 0.5,
        key_header: str = "",
        headers: Mapping[str, str] = types.MappingProxyType({}),
    ):
        try:
            import httpx
        except ModuleNotFoundError:
            raise UserError('httpx is not installed: pip install -e ".[client]"') from None
        key = {key_header: api_key} if key_header else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS)
        headers = {**headers, **(key if api_key is not None else {})}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)
        self._secret = api_key or ""
        self._retried = (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError)
        self._failed = httpx.HTTPError
        self.url, self.model, self._attempts, self._backoff = url, model, attempts, backoff

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def send(
        self,
        path: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Awaitable[_Read]],
        is_reported: Callable[[], bool] = lambda: False,
    ) -> _Read:
        """Posts a request until it is answered.

        Args:
            path: below the URL.
            body: JSON.
            read: reads a response without an error.
            is_reported: whether parts of the answer were handed on, which cannot be taken back.

        Raises:
            ServerFailedError: the server does not answer after all attempts.
            PromptTooLongError: the request is longer than the model reads.
            UserError: the server refuses the request.
        """
        failure = ""
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._backoff * 2 ** (attempt - 1))
            try:
                async with self._http.stream("POST", path, json=body) as response:
                    if response.status_code < 400:
                        return await read(response)
                    raw, _ = await _beginning(response, _LARGEST_ERROR)
                    error = _error_of(raw)
                    failure = f"status {response.status_code}: {self._words(error, raw)}"
                    if response.status_code < 500 and response.status_code != 429:
                        kind = PromptTooLongError if _is_too_long(error) else UserError
                        raise kind(f"{self.url} refused the request with {failure}")
            except self._failed as broken:
                failure = f"{type(broken).__name__}: {broken}"
                if is_reported() or not isinstance(broken, self._retried):
                    raise ServerFailedError(f"{self.url} failed: {failure}") from broken
        raise ServerFailedError(f"{self.url} failed {self._attempts} times, the last time with {failure}")

    def _words(self, error: Mapping[str, Any], raw: bytes) -> str:
        """What a server says of its error, in a line of bounded length without the API key."""
        text = str(error["message"]) if "message" in error else raw[:200].decode(errors="replace")
        text = text.replace(self._secret, "***") if self._secret else text
        return " ".join(text.split())[:_LONGEST_WORDS]


class HTTPClient(Endpoint, Client):
    """A client of an OpenAI-compatible server: ``/v1/completions`` with token ids and log-probabilities.

    The server has to understand ``return_token_ids``, ``stop_token_ids`` and ``ignore_eos``, as
    ``python -m k2jax.serve`` and vLLM do: the stop tokens of the sampling end a completion, no others. A resumed
    completion is sent as a longer prompt: its tokens continue with other random numbers than an engine's would.

    Example:
        >>> async with HTTPClient("http://localhost:8000", "k2") as client:
        ...     completion = await client.generate(prompt_ids, Sampling(max_tokens=50))

    Args:
        url: see ``Endpoint``.
        model: see ``Endpoint``.
        version: of the server's weights, where they are known not to change.
        options: of ``Endpoint``.
    """

    def __init__(self, url: str, model: str, *, version: int = UNKNOWN_VERSION, **options: Any):
        super().__init__(url, model, **options)
        self._version = version

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """Generates on the server; see ``Client.generate``.

        Raises:
            ServerFailedError: the server does not answer after all attempts, or answers with what is no completion.
            PromptTooLongError: the server's longest sequence has no room for the prompt and ``max_tokens``.
            UserError: the server refuses the request, or answers without token ids; ``return_experts``, a constraint,
                penalties or biases are asked for; the completion that is to be resumed has ``max_tokens`` already; the
                prompt has images.
        """
        sampling.check()
        refuse_media(self, media)
        if sampling.constraint is not None:
            raise UserError("a server is sent no grammars; leave the constraint out, or use an engine")
        if sampling.is_adjusted:
            raise UserError("servers differ in what penalties and biases do to log-probabilities; leave them out")
        if sampling.return_experts:
            raise UserError("a server does not report chosen experts; leave return_experts out")
        resumed = [] if resume is None else resume.tokens.tolist()
        if len(resumed) >= sampling.max_tokens:
            raise UserError(f"the completion has max_tokens {sampling.max_tokens} already")
        body = self._body([*map(int, prompt), *resumed], sampling, len(resumed), stream=on_token is not None)
        tokens, logprobs, finish = await self._with_retries(body, on_token)
        tokens, logprobs = resumed + tokens, [0.0] * len(resumed) + logprobs
        return new_completion(tokens, logprobs, [self._version] * len(tokens), finish, resume)

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities by a completion that echoes its prompt; see ``Client.score``.

        Raises:
            ServerFailedError: the server does not answer after all attempts, or answers with what is no completion.
            UserError: the server refuses the request, or does not score an echoed prompt.
        """
        check_scored(ids, start)
        refuse_media(self, media)
        body = self._body(list(map(int, ids)), Sampling(max_tokens=1, temperature=0.0), 0, stream=False)
        _, logprobs, _ = await self._with_retries(body | {"echo": True}, None)
        if np.isnan(logprobs[start : len(ids)]).any():
            raise UserError(f"{self.url} does not score the tokens of an echoed prompt, which k2jax.serve and vLLM do")
        return np.array(logprobs[start : len(ids)], np.float32)

    def _body(self, prompt: list[int], sampling: Sampling, resumed: int, stream: bool) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "max_tokens": sampling.max_tokens - resumed, "stream": stream}
        names = ("temperature", "top_p", "top_k", "min_p", "seed")
        body |= {name: getattr(sampling, name) for name in names} | {"logprobs": 0, "return_token_ids": True}
        # What ends a request is what its sampling says, as with an engine in the same process.
        return body | {"ignore_eos": True, "stop_token_ids": list(sampling.stop_tokens)}

    async def _with_retries(self, body: dict, on_token: OnToken | None) -> tuple[list[int], list[float], str]:
        echoed = body["prompt"] if body.get("echo") else []
        tokens: list[int] = []
        logprobs: list[float] = []

        async def read(response: Any) -> str:
            tokens.clear()
            logprobs.clear()
            return await self._read(response, tokens, logprobs, on_token, echoed)

        finish = await self.send("/v1/completions", body, read, is_reported=lambda: bool(tokens))
        return tokens, logprobs, finish

    async def _read(
        self, response: Any, tokens: list[int], logprobs: list[float], on_token: OnToken | None, echoed: list[int]
    ) -> str:
        """Appends the echoed and the new tokens with their log-probabilities; returns the finish reason."""
        finish = None
        async for choice in self._choices(response, stream=on_token is not None):
            finish = choice.get("finish_reason") or finish
            scores = (choice.get("logprobs") or {}).get("token_logprobs") or []
            ids = choice.get("token_ids", [] if scores == [] and on_token else None)
            ids = None if ids is None else [*echoed, *ids]
            if ids is None or len(ids) != len(scores):
                raise UserError(f"{self.url} answered without the id and log-probability of every token")
            for token, logprob in zip(ids, scores, strict=True):
                tokens.append(token)
                logprobs.append(np.nan if logprob is None else logprob)
                if on_token is not None and on_token(token, logprobs[-1]):
                    return "stop"
        if finish is None:
            raise ServerFailedError(f"{self.url} ended its answer without a finish reason")
        return finish

    async def _choices(self, response: Any, stream: bool) -> AsyncIterator[dict[str, Any]]:
        """The choice of a whole answer, or of every chunk of a stream."""
        if not stream:
            for choice in choices_of(await body_of(response, self.url), self.url)[:1]:
                yield choice
            return
        async for line in response.aiter_lines():
            if line.startswith("data:") and line != "data: [DONE]":
                chunk = decoded(line.removeprefix("data:"), self.url)
                if "error" in chunk:
                    raise ServerFailedError(f"{self.url} failed: {chunk['error'].get('message')}")
                for choice in choices_of(chunk, self.url):
                    yield choice


async def body_of(response: Any, url: str) -> dict[str, Any]:
    """The object that a server answers with; raises ServerFailedError where there is none, or a larger one."""
    raw, is_whole = await _beginning(response, LARGEST_ANSWER)
    if not is_whole:
        raise ServerFailedError(f"{url} answered with more than {LARGEST_ANSWER:,} bytes")
    return decoded(raw, url)


async def _beginning(response: Any, most: int) -> tuple[bytes, bool]:
    """At most so many bytes of an answer, and whether those are all of it."""
    raw = bytearray()
    async for part in response.aiter_bytes():
        raw += part
        if len(raw) > most:
            return bytes(raw[:most]), False
    return bytes(raw), True


def decoded(raw: str | bytes, url: str) -> dict[str, Any]:
    """The object in a server's answer; raises ServerFailedError where there is none."""
    try:
        decoded = json.loads(raw)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ServerFailedError(f"{url} answered with what is not JSON, or no object")
    return decoded


def choices_of(answer: dict[str, Any], url: str) -> list[dict[str, Any]]:
    """The choices of an answer; raises ServerFailedError where they are none."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ServerFailedError(f"{url} answered without choices")
    return choices


def _error_of(raw: bytes) -> dict[str, Any]:
    """The error in an answer that has OpenAI's shape; empty where it has another."""
    try:
        error = json.loads(raw)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _is_too_long(error: dict[str, Any]) -> bool:
    """Whether an error says so: by OpenAI's code, or in the words of vLLM, Anthropic and this project's messages."""
    words = str(error.get("message"))
    return error.get("code") == "context_length_exceeded" or bool(_TOO_LONG.search(words))
