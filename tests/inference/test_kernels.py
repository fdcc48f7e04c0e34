"""The engine through the TPU's decode kernel, run in interpret mode: what it generates, and how it sees its cache."""

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.config import replace_keys
from k2jax.errors import UserError
from k2jax.inference.engine import Engine
from k2jax.inference.forward import empty_cache
from tests.inference.tiny import MLA, NORMED, PLAIN, oracle, prompts, weights


@pytest.mark.parametrize("lengths", [(1, 12), pytest.param((1, 20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", [PLAIN, NORMED], ids=["mla", "gqa"])
def test_cached_decoding_equals_the_full_pass(model, lengths):
    """Prompts of one token and of two pages, or of several pages and chunks, in one batch."""
    kernels = replace_keys(model, {"kernels": "interpret"})
    engine = Engine(kernels, weights(model), slots=2, max_length=32, page_size=8)
    for request in engine.generate(prompts(*lengths), Sampling(max_tokens=3, temperature=0.0)):
        expected = oracle(model, request.ids)
        for i, token in enumerate(request.tokens):
            row = expected[len(request.prompt) - 1 + i]
            assert token == row.argmax()
            assert abs(request.logprobs[i] - row[token]) < 1e-4


def test_the_kernels_cache_has_whole_lanes():
    """Otherwise XLA copies the whole cache at every step."""
    plain, padded = (empty_cache(replace_keys(MLA, {"kernels": k}), 2, 8, np.float32) for k in ("xla", "pallas"))
    assert plain.shape == (3, 2, 8, 20) and padded.shape == (3, 2, 8, 128)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"page_size": 20}, "multiple of 8, not 20"),
        ({"slots": 64, "max_length": 131072}, "64 slots of 8,192 pages are more than the 200,000 .* page_size of 48"),
    ],
)
def test_pages_that_the_kernel_cannot_hold_are_refused(sizes, message):
    with pytest.raises(UserError, match=message):
        Engine(replace_keys(MLA, {"kernels": "interpret"}), weights(MLA), pages=9000, **sizes)
