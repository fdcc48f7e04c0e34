"""On one CPU device an engine holds the experts' weights in panels; what it computes and gives back is the same."""

import dataclasses

import numpy as np

from k2jax.client import Sampling
from k2jax.inference.weights import EngineWeights
from tests.inference.tiny import ROUTED, check_against_oracle, engine, prompts, weights

# Gate and up are two panels and a half, down is one.
WIDE = dataclasses.replace(ROUTED, moe=dataclasses.replace(ROUTED.moe, expert_ffn=80))


def test_tokens_are_those_of_the_model():
    """Four sequences read all experts, the last one that goes on its own alone."""
    asked = [Sampling(max_tokens=tokens, temperature=0.7, seed=3) for tokens in (4, 4, 4, 12)]
    for request in engine(WIDE).generate(prompts(5, 6, 7, 8), asked):
        check_against_oracle(WIDE, request)


def test_weights_and_checksums_are_those_of_whole_arrays():
    held, stacked = (EngineWeights(weights(WIDE), WIDE, None, stacked=each) for each in (False, True))
    assert [part.shape for part in held.params["moe"][0]["experts"]["w13"]] == [(4, 32, 64), (4, 32, 64), (4, 32, 32)]
    assert held.checksums() == stacked.checksums()
    leaves, expected = dict(held.leaves()), dict(stacked.leaves())
    assert leaves.keys() == expected.keys()
    for name, array in leaves.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_kernel_that_was_asked_for_takes_whole_weights():
    interpreted = dataclasses.replace(WIDE, kernels="interpret")
    held = EngineWeights(weights(WIDE), interpreted, None, stacked=False)
    assert held.params["moe"][0]["experts"]["w13"].shape == (4, 32, 2, 80)
