"""The engine through the TPU's decode kernel, run in interpret mode: what it generates, and how it sees its cache."""

import dataclasses

import numpy as np

from k2jax.inference.engine import Engine
from k2jax.inference.forward import empty_cache
from k2jax.inference.request import Sampling
from tests.inference.tiny import MLA, PLAIN, oracle, prompts, weights


def test_cached_decoding_equals_the_full_pass():
    """Prompts of one token, of less than a page and of several pages, in one batch."""
    engine = Engine(
        dataclasses.replace(PLAIN, kernels="interpret"), weights(PLAIN), slots=4, max_length=64, page_size=8
    )
    for request in engine.generate(prompts(1, 5, 40), Sampling(max_tokens=4, temperature=0.0)):
        expected = oracle(PLAIN, request.ids)
        for place, token in enumerate(request.tokens, len(request.prompt) - 1):
            assert token.id == expected[place].argmax()
            assert abs(token.logprob - expected[place, token.id]) < 1e-4


def test_the_kernels_cache_has_whole_lanes():
    """Otherwise XLA copies the whole cache at every step."""
    plain, padded = (empty_cache(dataclasses.replace(MLA, kernels=k), 2, 8, np.float32) for k in ("xla", "pallas"))
    assert plain.shape == (3, 2, 8, 20) and padded.shape == (3, 2, 8, 128)
