"""IcePop and averaged log-probabilities against float64 formulas, with every policy loss."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.config import IcePopConfig, PolicyLossConfig, defaults, resolve
from k2jax.errors import UserError
from k2jax.losses import make_policy_loss
from k2jax.losses.icepop import IcePop
from tests.losses import policy_reference as reference
from tests.losses.test_policy import problem, shares, value_and_gradient

LOW, HIGH = 0.93, 1.1  # of k, whose logarithm has a standard deviation of 0.1: a third of the tokens lie outside
BAND = {"ratio_low": 0.7, "ratio_high": 1.4}
CONFIGS = {
    "k2.5": PolicyLossConfig(name="k2.5", tau=0.05, **BAND),
    "reinforce": PolicyLossConfig(name="reinforce"),
    "kat": PolicyLossConfig(name="kat", **BAND),
    "kat, tokens": PolicyLossConfig(name="kat", aggregation="token", **BAND),
    "k2": PolicyLossConfig(name="k2", tau=0.1),
}
FORMULAS = {
    "kat": (reference.gspo, {"low": 0.7, "high": 1.4, "aggregation": "sequence"}),
    "kat, tokens": (reference.gspo, {"low": 0.7, "high": 1.4, "aggregation": "token"}),
    "k2": (reference.k2, {"tau": 0.1}),
}


def loss_of(name):
    icepop = IcePopConfig(on=True, low=LOW, high=HIGH)
    return make_policy_loss(PolicyLossConfig(**vars(CONFIGS[name]) | {"icepop": icepop, "old": "recompute"}))


def factors(targets):
    """k float64 ``[ROWS, LENGTH]``, 0 outside the band."""
    k = np.exp(targets.old_logprob.astype(np.float64) - targets.behavior_logprob)
    return np.where((k >= LOW) & (k <= HIGH), k, 0.0)


def by_tokens(name, logprob, targets, responses):
    """Minus the mean over tokens of k times the policy-gradient term, less the pull, by a loop."""
    k, total, count = factors(targets), 0.0, 0
    for response in responses:
        for token in response.tokens:
            at = response.row, token
            log_ratio = logprob[at] - targets.old_logprob[at]
            if name == "k2.5":
                term = k[at] * min(max(np.exp(log_ratio), 0.7), 1.4) * response.advantage - 0.05 * log_ratio**2
            else:
                term = k[at] * response.advantage * log_ratio
            total, count = total - term, count + 1
    return total / count


@pytest.mark.parametrize("name", ["k2.5", "reinforce"])
@settings(max_examples=6)
@given(seed=st.integers(0, 2**16))
def test_the_policy_gradient_term_of_a_token_is_multiplied_by_its_factor(name, seed):
    responses, targets, logprob = problem(seed)
    function = lambda logprob: by_tokens(name, logprob, targets, responses)  # noqa: E731
    value, gradient = value_and_gradient(loss_of(name), logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(function, logprob), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**16))
def test_of_a_ratio_of_several_tokens_each_token_s_share_of_the_gradient_is_weighed(name, seed):
    responses, targets, logprob = problem(seed)
    formula, options = FORMULAS[name]
    function = lambda logprob: formula(logprob, targets.old_logprob, responses, **options)  # noqa: E731
    value, gradient = value_and_gradient(loss_of(name), logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    expected = factors(targets) * reference.gradient_of(function, logprob)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=2e-6)


def test_the_share_of_zeroed_tokens_is_reported():
    _, targets, logprob = problem(3)
    zeroed = (factors(targets) == 0)[targets.mask > 0]
    metrics = shares(loss_of("k2.5"), jnp.asarray(logprob, jnp.float32), targets)[1]
    assert 0.1 < zeroed.mean() < 0.9
    np.testing.assert_allclose(metrics["tokens/zeroed"], zeroed.mean(), rtol=1e-6)
    plain = make_policy_loss(CONFIGS["k2.5"])
    assert "tokens/zeroed" not in shares(plain, jnp.asarray(logprob, jnp.float32), targets)[1]


@pytest.mark.parametrize(("difference", "factor"), [(-300.0, 0), (-0.7, 0), (-0.69, 0.50158), (1.6, 4.953), (1.7, 0)])
def test_the_band_holds_k_between_a_half_and_five(difference, factor):
    _, targets, _ = problem(0)
    targets = targets._replace(old_logprob=targets.behavior_logprob + np.float32(difference))
    sampled = targets.mask > 0
    np.testing.assert_allclose(IcePop(0.5, 5.0).factor(targets)[sampled], factor, rtol=1e-3)
    assert (IcePop(0.5, 5.0).factor(targets)[~sampled] == 1).all()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"icepop.on": True}, "icepop.on reads the trainer's own log-probabilities; set rl.loss.old=recompute"),
        ({"mcla.passes": 4}, "mcla.passes=4 reads the trainer's own"),
        ({"old": "recompute", "icepop.on": True, "icepop.low": 2.0}, "do not enclose 1"),
    ],
)
def test_mistakes_are_one_line(overrides, words):
    config = defaults("rl")
    config.update_from_flattened_dict({f"rl.loss.{key}": value for key, value in overrides.items()})
    with pytest.raises(UserError, match=words):
        resolve(config)
