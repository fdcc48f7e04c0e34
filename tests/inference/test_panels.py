"""On one CPU device an engine holds the experts' weights in panels; what it computes and gives back is the same."""

import dataclasses

import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.inference.weights import EngineWeights
from tests.inference.tiny import MLA, engine, oracle, prompts, weights

# Gate and up are two panels and a half, down is one.
WIDE = dataclasses.replace(MLA, moe=dataclasses.replace(MLA.moe, expert_ffn=80))


@pytest.mark.parametrize("rows", [1, 4])
def test_tokens_are_those_of_the_model(rows):
    """One sequence reads its own experts alone, four read all of them."""
    run = engine(WIDE)
    for request in run.generate(prompts(*range(5, 5 + rows)), Sampling(max_tokens=12, temperature=0.7, seed=3)):
        start = len(request.prompt)
        expected = oracle(WIDE, request.ids, 0.7)[np.arange(start - 1, start + 11), list(request.tokens)]
        np.testing.assert_allclose(request.logprobs, expected, atol=1e-4)


def test_weights_and_checksums_are_those_of_whole_arrays():
    held, stacked = (EngineWeights(weights(WIDE), WIDE, None, stacked=each) for each in (False, True))
    assert [part.shape for part in held.params["moe"][1]["experts"]["w13"]] == [(8, 32, 64), (8, 32, 64), (8, 32, 32)]
    assert held.checksums() == stacked.checksums()
    leaves, expected = dict(held.leaves()), dict(stacked.leaves())
    assert leaves.keys() == expected.keys()
    for name, array in leaves.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_kernel_that_was_asked_for_takes_whole_weights():
    interpreted = dataclasses.replace(WIDE, kernels="interpret")
    held = EngineWeights(weights(WIDE), interpreted, None, stacked=False)
    assert held.params["moe"][0]["experts"]["w13"].shape == (8, 32, 2, 80)
