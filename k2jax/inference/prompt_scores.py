"""Log-probabilities of the tokens of prompts, chunk by chunk."""

from __future__ import annotations

import numpy as np

from k2jax.inference.forward import PromptScores
from k2jax.inference.scheduler import Sequence


def score_prompt(sequence: Sequence, scores: PromptScores, count: int) -> None:
    """Keeps the scores of the prompt tokens that follow the computed ids."""
    request, first = sequence.request, sequence.computed
    if request.sampling.prompt_logprobs and len(request.prompt_logprobs) < len(request.prompt) - 1:
        # A request that lost its pages scores its prompt anew.
        del request.prompt_logprobs[first:], request.prompt_top_logprobs[first:]
        reused = first - len(request.prompt_logprobs)  # of a prefix that another request has computed
        request.prompt_logprobs.extend([float("nan")] * reused)
        request.prompt_top_logprobs += [()] * (reused if request.sampling.top_logprobs else 0)
        new = max(0, min(count, len(request.prompt) - 1 - first))
        request.prompt_logprobs.frombytes(scores.logprobs[:new].astype(np.float32).tobytes())
        if alternatives := request.sampling.top_logprobs:
            pairs = zip(scores.top_ids[:new], scores.top_logprobs[:new], strict=True)
            request.prompt_top_logprobs += [top_pairs(ids, logprobs)[:alternatives] for ids, logprobs in pairs]


def top_pairs(ids: np.ndarray, logprobs: np.ndarray) -> tuple[tuple[int, float], ...]:
    """Token ids ``[n]`` and their log-probabilities ``[n]`` [nats] as pairs."""
    return tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
