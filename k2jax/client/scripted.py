"""A client whose replies are written by its caller, for tests of what uses a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any
import zlib

import numpy as np

from k2jax.client.types import Client, Completion, OnToken, Sampling, check_scored, new_completion
from k2jax.errors import UserError


class ScriptedClient(Client):
    """Gives the replies of a function instead of a model's.

    Example:
        >>> client = ScriptedClient(lambda prompt, sampling: [5, 6, 7])

    Args:
        reply: token ids after a prompt; they end at a stop token or after ``max_tokens``.
        version: reported with every token.

    Attributes:
        calls: the prompt and sampling of every call so far.
        media: the images of every call so far.
    """

    def __init__(self, reply: Callable[[tuple[int, ...], Sampling], Iterable[int]], version: int = 0):
        self.calls: list[tuple[tuple[int, ...], Sampling]] = []
        self.media: list[tuple[Any, ...]] = []
        self._reply, self._version = reply, version

    @staticmethod
    def logprob(context: Sequence[int], token: int) -> float:
        """The log-probability of a token after all tokens before it: a fixed function, exact in float32."""
        return -(1 + zlib.crc32(np.asarray([*context, token], np.int64).tobytes()) % 4096) / 1024

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        resume: Completion | None = None,
        on_token: OnToken | None = None,
        media: Sequence[Any] = (),
    ) -> Completion:
        """The scripted reply; see ``Client.generate``."""
        sampling.check()
        prompt = tuple(int(token) for token in prompt)
        self.calls.append((prompt, sampling))
        self.media.append(tuple(media))
        tokens, finish = cut_reply(self._reply(prompt, sampling), sampling, resume)
        logprobs = [self.logprob((*prompt, *tokens[:i]), token) for i, token in enumerate(tokens)]
        for i in range(0 if resume is None else len(resume.tokens), len(tokens)):
            await asyncio.sleep(0)
            if on_token is not None and on_token(tokens[i], logprobs[i]) and i + 1 < len(tokens):
                tokens, logprobs, finish = tokens[: i + 1], logprobs[: i + 1], "stop"
                break
        return new_completion(tokens, logprobs, [self._version] * len(tokens), finish, resume)

    async def score(self, ids: Sequence[int], start: int, media: Sequence[Any] = ()) -> np.ndarray:
        """Log-probabilities by ``logprob``; see ``Client.score``."""
        check_scored(ids, start)
        return np.array([self.logprob(ids[:place], ids[place]) for place in range(start, len(ids))], np.float32)


def cut_reply(reply: Iterable[int], sampling: Sampling, resume: Completion | None = None) -> tuple[list[int], str]:
    """A scripted reply up to its first stop token or ``max_tokens``, and its finish reason.

    Raises:
        UserError: the reply does not begin with the tokens of ``resume``.
    """
    reply = [int(token) for token in reply]
    if resume is not None and reply[: len(resume.tokens)] != resume.tokens.tolist():
        raise UserError("the scripted reply does not begin with the tokens of the completion that it resumes")
    end = next((i + 1 for i, token in enumerate(reply) if token in sampling.stop_tokens), len(reply))
    if end > sampling.max_tokens:
        return reply[: sampling.max_tokens], "length"
    return reply[:end], "stop"
