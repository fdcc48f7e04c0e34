"""Distillation against a float64 loop over tokens: values, gradients, exact zeros, and weights of tokens."""

import numpy as np
import pytest

from k2jax.losses import CombinedLoss
from k2jax.losses.distill import Distillation
from k2jax.losses.gspo import GSPO
from k2jax.losses.k25 import K25Loss
from k2jax.losses.reinforce import Reinforce
from tests.losses import policy_reference as reference
from tests.losses.test_policy import problem, shares, value_and_gradient

WEIGHT = 0.7


def with_teacher(seed):
    """A batch with gaps of a teacher in ``targets.distill``, and a weight of its own for each token."""
    responses, targets, logprob = problem(seed)
    rng, sampled = np.random.default_rng(seed), targets.mask > 0
    gap = np.where(sampled, rng.normal(-0.5, 1.0, sampled.shape), 0).astype(np.float32)
    weight = np.where(sampled, rng.uniform(0.2, 3.0, sampled.shape), 0).astype(np.float32)
    return responses, targets._replace(distill=gap, weight=weight), logprob


def distillation(logprob, targets, responses):
    """Minus lambda times the weighted mean of ratio times gap, token by token."""
    total = weights = 0.0
    for response in responses:
        for token in response.tokens:
            place = (response.row, token)
            ratio = np.exp(logprob[place] - targets.old_logprob[place])
            total -= WEIGHT * targets.weight[place] * ratio * targets.distill[place]
            weights += targets.weight[place]
    return total / weights


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_value_and_gradient_are_those_of_the_formula_in_float64(seed):
    responses, targets, logprob = with_teacher(seed)
    function = lambda logprob: distillation(logprob, targets, responses)  # noqa: E731
    value, gradient = value_and_gradient(Distillation(WEIGHT), logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(function, logprob), rtol=1e-4, atol=2e-6)
    assert (np.asarray(gradient)[targets.mask == 0] == 0).all()


@pytest.mark.parametrize("policy", [Reinforce(), GSPO(0.8, 1.2, level="turn")])
def test_a_teacher_that_agrees_has_a_gradient_of_exactly_zero(policy):
    """Beside a policy loss whose advantages are 0, and with a policy that has moved."""
    _, targets, logprob = problem(3)
    zeros = {name: np.zeros_like(getattr(targets, name)) for name in ("advantage", "turn_advantage", "distill")}
    _, gradient = value_and_gradient(CombinedLoss(policy, Distillation(WEIGHT)), logprob, targets._replace(**zeros))
    assert not np.asarray(gradient).any()


def test_it_dilutes_no_policy_loss_and_is_not_diluted_by_one():
    _, targets, logprob = with_teacher(4)
    policy, alone = GSPO(0.8, 1.2, level="turn"), Distillation(WEIGHT)
    together = shares(CombinedLoss(policy, alone), logprob.astype(np.float32), targets)[0]
    for loss in (policy, alone):
        for term, value in shares(loss, logprob.astype(np.float32), targets)[0].items():
            np.testing.assert_array_equal(together[term], value)


@pytest.mark.parametrize("seed", [0, 1])
def test_k25_takes_an_advantage_of_every_token_and_its_weight(seed):
    responses, targets, logprob = with_teacher(seed)
    rng = np.random.default_rng(seed)
    targets = targets._replace(advantage=np.where(targets.mask > 0, rng.normal(size=targets.mask.shape), 0))

    def formula(logprob):
        total = weights = 0.0
        for response in responses:
            for token in response.tokens:
                place = (response.row, token)
                log_ratio = logprob[place] - targets.old_logprob[place]
                gain = np.clip(np.exp(log_ratio), 0.7, 1.4) * targets.advantage[place] - 0.05 * log_ratio**2
                total, weights = total - targets.weight[place] * gain, weights + targets.weight[place]
        return total / weights

    value, gradient = value_and_gradient(K25Loss(0.7, 1.4, 0.05), logprob, targets)
    np.testing.assert_allclose(value, formula(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(formula, logprob), rtol=1e-4, atol=2e-6)
