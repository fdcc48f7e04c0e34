"""Tokens of an engine in another process as they come, for whoever streams them or ends an answer early.

A black-box agent's answer is streamed, and ends where its client has left. Other episodes want whole answers, whose
tokens are not reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
import contextlib

import numpy as np

from k2jax.client import Completion, OnToken, new_completion


class TokenReport:
    """The engine's end: sends the tokens of one request, those that come together at once.

    Args:
        send: sends token ids, log-probabilities, and the versions of the weights that chose them.
        version: returns that of the token that is reported now.

    Attributes:
        is_ended: whether the other end wants no token more.
    """

    def __init__(self, send: Callable[[list[int], list[float], list[int]], None], version: Callable[[], int]):
        self._send, self._version, self._loop = send, version, asyncio.get_running_loop()
        self._held: deque[tuple[int, float, int]] = deque()
        self._is_woken = self.is_ended = False

    def on_token(self, token: int, logprob: float) -> bool:
        """Takes a token, perhaps on the engine's thread; see ``OnToken``."""
        self._held.append((token, logprob, self._version()))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody is left
                self._loop.call_soon_threadsafe(self.flush)
        return self.is_ended

    def flush(self) -> None:
        """Sends all that is held; runs on the event loop."""
        self._is_woken = False  # before anything is taken: what comes from here on wakes again
        held = [self._held.popleft() for _ in range(len(self._held))]
        if held:
            self._send(*map(list, zip(*held, strict=True)))


class ReportedTokens:
    """The other end: hands the tokens on, until it is told that they are enough.

    The engine learns of that later, and of what it has sampled meanwhile nothing is kept.

    Args:
        on_token: see ``OnToken``.
        resume: the completion that continues, whose tokens are not reported; None to begin.
    """

    def __init__(self, on_token: OnToken, resume: Completion | None = None):
        self._on_token, self._resume, self._is_ended = on_token, resume, False
        self._tokens: list[int] = [] if resume is None else resume.tokens.tolist()
        self._logprobs, self._versions = ([], []) if resume is None else [each.tolist() for each in resume[1:3]]

    def add(self, tokens: np.ndarray, logprobs: np.ndarray, versions: np.ndarray) -> bool:
        """Hands tokens on; returns whether these are the first that were enough."""
        if self._is_ended:
            return False
        for token, logprob, version in zip(tokens.tolist(), logprobs.tolist(), versions.tolist(), strict=True):
            self._tokens.append(token)
            self._logprobs.append(logprob)
            self._versions.append(version)
            if self._on_token(token, logprob):
                self._is_ended = True
                break
        return self._is_ended

    def cut(self, prompt: int, completion: Completion) -> Completion:
        """The completion after a prompt of so many tokens, as far as it was wanted."""
        count = len(self._tokens)
        if not self._is_ended or len(completion.tokens) <= count:
            return completion
        experts = None if completion.experts is None else completion.experts[: prompt + count - 1]
        free = completion.free_logprobs
        free = None if free is None else free[:count]
        return Completion(*(array[:count] for array in completion[:3]), "stop", experts, free)

    def completion(self) -> Completion | None:
        """All tokens so far, of an engine that is lost; whose experts are not known. None where there are none."""
        if not self._tokens:
            return None
        finish = "stop" if self._is_ended else "cancelled"
        return new_completion(self._tokens, self._logprobs, self._versions, finish)
