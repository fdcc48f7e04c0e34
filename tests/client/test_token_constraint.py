"""Which tokens of a constrained completion are trained on."""

import numpy as np

from k2jax.client import new_completion


def test_tokens_that_a_mask_forced_are_not_trained_on():
    masked, free = [0.0, -1.0, -2.0, -0.5], [-3.0, -1.005, -2.02, -0.5]
    done = new_completion([1, 2, 3, 4], masked, [0] * 4, "stop", free_logprobs=free)
    assert done.trainable.tolist() == [False, True, False, True]
    plain = new_completion([1, 2], masked[:2], [0, 0], "stop")
    assert plain.trainable.tolist() == [True, True]


def test_what_is_known_of_resumed_tokens_is_kept():
    first = new_completion([1, 2], [0.0, -1.0], [0, 0], "cancelled", free_logprobs=[-3.0, -1.0])
    nan = float("nan")
    whole = new_completion([1, 2, 3], [nan, nan, -0.1], [-1, -1, 5], "stop", first, free_logprobs=[nan, nan, -0.4])
    np.testing.assert_allclose(whole.free_logprobs, [-3.0, -1.0, -0.4])
    np.testing.assert_allclose(whole.logprobs, [0.0, -1.0, -0.1])
    assert whole.trainable.tolist() == [False, True, False]
