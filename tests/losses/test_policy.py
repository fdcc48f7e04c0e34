"""Policy losses against float64 loops over responses, turns and tokens: values, gradients, limits, metrics."""

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import TokenScores
from k2jax.config import PolicyLossConfig
from k2jax.losses import CombinedLoss, Rows, make_policy_loss
from k2jax.losses.gspo import GSPO
from k2jax.losses.k2 import K2Loss
from k2jax.losses.k25 import K25Loss
from k2jax.losses.policy import Gain
from k2jax.losses.ppo import PPO
from k2jax.losses.ptx import PTX
from k2jax.losses.quantiles import BOUNDS
from k2jax.losses.reinforce import Reinforce
from k2jax.parallel.objective import MAXIMUM
from tests.losses import policy_reference as reference
from tests.losses.policy_reference import LENGTH, ROWS

BAND = {"low": 0.7, "high": 1.4}


def configured(name, **options):
    return make_policy_loss(PolicyLossConfig(name=name, ratio_low=0.7, ratio_high=1.4, **options))


CASES = {
    "k2.5": (configured("k2.5", tau=0.05), reference.k25, BAND | {"tau": 0.05}),
    "k2": (configured("k2", tau=0.1), reference.k2, {"tau": 0.1}),
    "kat": (configured("kat"), reference.gspo, BAND | {"aggregation": "sequence"}),
    "kat, tokens": (configured("kat", aggregation="token"), reference.gspo, BAND | {"aggregation": "token"}),
    "reinforce": (configured("reinforce"), reference.reinforce, {}),
}
EXIT = np.full((ROWS, LENGTH), LENGTH, np.int32)
LOSSES = [case[0] for case in CASES.values()]


def shares(loss, logprob, targets, entropy=None, denominators=None):
    """Terms and metrics over their denominators, as the training step makes them."""
    rows = Rows(jnp.asarray(EXIT[: len(logprob)]), jnp.arange(LENGTH))
    denominators = denominators or loss.denominators(targets)
    terms, metrics = {}, {}
    for name, (total, sums) in loss(TokenScores(logprob, entropy), targets, rows).items():
        if total is not None:
            terms[name] = total / denominators[name]
        for key, value in sums.items():
            metrics[f"{name}/{key}"] = value if key.endswith(MAXIMUM) else value / denominators[name]
    return terms, metrics


def value_and_gradient(loss, logprob, targets):
    total = lambda logprob: sum(shares(loss, logprob, targets)[0].values())  # noqa: E731
    return jax.value_and_grad(total)(jnp.asarray(logprob, jnp.float32))


def problem(seed, **options):
    rng = np.random.default_rng(seed)
    responses = reference.random_responses(rng, options.pop("turns", None))
    return responses, *reference.targets_of(responses, rng, **options)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**16))
def test_value_and_gradient_are_those_of_the_formula_in_float64(case, seed):
    loss, formula, options = CASES[case]
    responses, targets, logprob = problem(seed)
    function = lambda logprob: formula(logprob, targets.old_logprob, responses, **options)  # noqa: E731
    value, gradient = value_and_gradient(loss, logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(function, logprob), rtol=1e-4, atol=2e-6)
    assert (np.asarray(gradient)[targets.mask == 0] == 0).all()


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("place", ["below", "low", "one", "high", "above"])
def test_the_band_of_k25_has_the_same_bounds_for_both_signs_of_the_advantage(place, advantage):
    low, high, tau = 0.5, 2.0, 0.1
    bounds = {"low": np.float32(math.log(low)), "one": np.float32(0), "high": np.float32(math.log(high))}
    bounds |= {
        "below": np.nextafter(bounds["low"], np.float32(-9)),
        "above": np.nextafter(bounds["high"], np.float32(9)),
    }
    log_ratio = bounds[place]
    value, slope = jax.value_and_grad(lambda x: K25Loss(low, high, tau).gain(x, advantage).value)(log_ratio)
    ratio = math.exp(float(log_ratio))
    inside = place in ("low", "one", "high")
    np.testing.assert_allclose(value, ratio * advantage - tau * float(log_ratio) ** 2, rtol=1e-6)
    np.testing.assert_allclose(slope, inside * ratio * advantage - 2 * tau * float(log_ratio), rtol=1e-6)
    assert bool(K25Loss(low, high, tau).gain(log_ratio, advantage).clipped) is not inside


@pytest.mark.parametrize("log_ratio", [-300.0, -25.0, 25.0, 300.0])
def test_far_outside_the_band_k25_only_pulls_back_and_stays_finite(log_ratio):
    loss = K25Loss(0.5, 2.0, 0.1)
    value, slope = jax.value_and_grad(lambda x: loss.gain(x, -3.0).value)(log_ratio)
    np.testing.assert_allclose(slope, -0.2 * log_ratio, rtol=1e-6)
    np.testing.assert_allclose(value, (2.0 if log_ratio > 0 else 0.5) * -3.0 - 0.1 * log_ratio**2, rtol=1e-6)


@pytest.mark.parametrize(("advantage", "log_ratio", "slope"), [(1, 0.5, 0), (1, -0.5, 1), (-1, 0.5, -1), (-1, -0.5, 0)])
def test_gspo_clips_only_where_the_objective_would_go_on_rising(advantage, log_ratio, slope):
    loss = GSPO(0.8, 1.2, level="turn")
    found = jax.grad(lambda x: loss.gain(x, advantage).value)(log_ratio)
    np.testing.assert_allclose(found, slope * math.exp(log_ratio), rtol=1e-6)
    assert bool(loss.gain(jnp.float32(log_ratio), advantage).clipped) == (slope == 0)


def test_the_gradient_of_k2_is_that_of_k15():
    responses, targets, logprob = problem(3)
    tau, expected = 0.3, np.zeros((ROWS, LENGTH))
    for response in responses:  # K1.5, equation 3: (r - mean) grad log pi - tau / 2 grad (log pi - log pi_i)^2
        row, tokens = response.row, response.tokens
        log_ratio = (logprob[row, tokens] - targets.old_logprob[row, tokens]).sum()
        expected[row, tokens] -= (response.advantage - tau * log_ratio) / len(responses)
    _, gradient = value_and_gradient(K2Loss(tau), logprob, targets)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**16))
def test_the_level_sequence_gives_all_turns_of_a_response_one_ratio(aggregation, seed):
    responses, targets, logprob = problem(seed)
    whole = [response._replace(turns=[response.tokens]) for response in responses]
    options = BAND | {"aggregation": aggregation}
    function = lambda logprob: reference.gspo(logprob, targets.old_logprob, whole, **options)  # noqa: E731
    loss = GSPO(0.7, 1.4, aggregation=aggregation, level="sequence")
    value, gradient = value_and_gradient(loss, logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(function, logprob), rtol=1e-4, atol=2e-6)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**16))
def test_ppo_gives_every_token_its_own_ratio(seed):
    responses, targets, logprob = problem(seed)
    single = [response._replace(turns=[[token] for token in response.tokens]) for response in responses]
    options = BAND | {"aggregation": "token"}
    function = lambda logprob: reference.gspo(logprob, targets.old_logprob, single, **options)  # noqa: E731
    value, gradient = value_and_gradient(PPO(0.7, 1.4), logprob, targets)
    np.testing.assert_allclose(value, function(logprob), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.gradient_of(function, logprob), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "band", "level"),
    [
        ("k2", (0.0, math.inf), "sequence"),
        ("k2.5", (0.5, 2.0), "token"),
        ("kat", (0.9997, 1.0004), "turn"),
        ("gspo", (0.9997, 1.0004), "sequence"),
        ("ppo", (0.8, 1.2), "token"),
    ],
)
def test_a_name_alone_gives_the_report_s_band_level_and_aggregation(name, band, level):
    """And where each of them stops a gradient that rises, a band that is given moves the bound."""
    config = PolicyLossConfig(name=name)
    assert config.band == pytest.approx(band) and config.level == make_policy_loss(config).level == level
    assert config.aggregation == "sequence"
    if name == "k2":
        return
    other = dataclasses.replace(config, ratio_low=0.6, ratio_high=1.3)
    for chosen, (low, high) in ((config, band), (other, (0.6, 1.3))):
        loss = make_policy_loss(chosen)
        for ratio, advantage, clipped in ((high * 1.0001, 1, 1), (high * 0.9999, 1, 0), (low * 0.9999, -1, 1)):
            gain = loss.gain(jnp.log(jnp.full((1, 1, 1), ratio)), jnp.full((1, 1, 1), float(advantage)))
            assert bool(gain.clipped.all()) == bool(clipped), (name, ratio)


@pytest.mark.parametrize("loss", LOSSES, ids=CASES)
def test_rows_of_padding_and_micro_batches_change_nothing(loss):
    _, targets, logprob = problem(7)
    logprob = jnp.asarray(logprob, jnp.float32)
    whole = shares(loss, logprob, targets)
    denominators, parts = loss.denominators(targets), []
    for part in (slice(0, 1), slice(1, ROWS)):
        cut = jax.tree.map(lambda leaf: leaf[part], targets)  # noqa: B023
        parts.append(shares(loss, logprob[part], cut, denominators=denominators))
    empty = reference.padding()
    zero = shares(loss, logprob, empty, denominators=denominators)
    all_zero = shares(loss, logprob, jax.tree.map(np.zeros_like, empty), denominators=denominators)
    assert not any(np.any(value) for value in jax.tree.leaves((zero, all_zero)))
    largest = [part[1].pop("tokens/mismatch_max") for part in (whole, *parts)]
    assert largest[0] == max(largest[1:]) > 0
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(a, b + c, rtol=1e-5, atol=1e-6), whole, *parts)


@pytest.mark.parametrize("loss", LOSSES, ids=CASES)
def test_the_scores_of_tokens_that_were_not_sampled_do_not_matter(loss):
    _, targets, logprob = problem(10)
    logprob = np.where(targets.mask > 0, logprob, 0.0)
    impossible = np.where(targets.mask > 0, logprob, -np.inf)
    expected, found = (value_and_gradient(loss, logprob, targets) for logprob in (logprob, impossible))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    metrics = shares(loss, jnp.asarray(impossible, jnp.float32), targets)[1]
    assert all(np.isfinite(value).all() for value in metrics.values())


def test_metrics_are_means_over_sampled_tokens():
    _, targets, logprob = problem(8)
    sampled, entropy = targets.mask > 0, np.random.default_rng(1).uniform(1, 2, logprob.shape)
    log_ratio, mismatch = (logprob - targets.old_logprob)[sampled], np.abs(logprob - targets.behavior_logprob)[sampled]
    expected = {
        "tokens/mismatch": mismatch.mean(),
        "tokens/mismatch_max": mismatch.max(),
        "tokens/mismatch_above": (mismatch[:, None] > BOUNDS).mean(0),
        "tokens/drift": np.abs(log_ratio).mean(),
        "tokens/kl": (np.exp(log_ratio) - 1 - log_ratio).mean(),
        "tokens/entropy": entropy[sampled].mean(),
        "policy/clipped": ((np.exp(log_ratio) < 0.7) | (np.exp(log_ratio) > 1.4)).mean(),
    }
    loss = K25Loss(0.7, 1.4, 0.05, entropy=True)
    terms, metrics = shares(loss, jnp.asarray(logprob, jnp.float32), targets, jnp.asarray(entropy, jnp.float32))
    assert set(terms) == {"policy"} and set(metrics) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, err_msg=name)
    assert "tokens/entropy" not in shares(K25Loss(0.7, 1.4, 0.05), jnp.asarray(logprob), targets)[1]


def test_the_estimate_of_kl_is_that_of_the_distributions_on_average():
    rng = np.random.default_rng(0)
    old, new = rng.dirichlet(np.ones(8), 2)
    rows = 400
    tokens = rng.choice(8, (rows, LENGTH), p=old)
    whole = empty = np.zeros((rows, LENGTH), np.float32)
    targets = reference.empty_targets(LENGTH, 1, 1)._replace(mask=whole + 1, old_logprob=np.log(old)[tokens])
    targets = targets._replace(behavior_logprob=targets.old_logprob, advantage=empty)
    rows_of = Rows(jnp.full((rows, LENGTH), LENGTH), jnp.arange(LENGTH))
    scores = TokenScores(jnp.asarray(np.log(new)[tokens], jnp.float32))
    kl = Reinforce()(scores, targets, rows_of)["tokens"][1]["kl"] / tokens.size
    np.testing.assert_allclose(kl, (old * np.log(old / new)).sum(), rtol=0.1)


def test_gspo_reports_clipping_by_length_of_turn():
    targets = reference.padding()._replace(
        turn_tokens=np.array([[10, 64, 65, 512, 513, 0]] * ROWS, np.float32),
        turn_weight=np.array([[1, 1, 1, 1, 1, 0]] * ROWS, np.float32),
    )
    clipped = jnp.asarray([[True, False, True, True, False, False]] * ROWS)
    report = GSPO(0.8, 1.2, level="turn").report(Gain(jnp.zeros(clipped.shape), clipped), targets)
    shares = {name: float((targets.turn_weight * value).sum() / (5 * ROWS)) for name, value in report.items()}
    assert shares == pytest.approx(
        {"clipped": 0.6, "turns_to_64": 0.4, "clipped_to_64": 0.2, "turns_to_512": 0.4, "clipped_to_512": 0.4}
        | {"turns_beyond_512": 0.2, "clipped_beyond_512": 0.0}
    )


def with_ptx(targets):
    """The targets with a row of curated text after their own, whose tokens no response holds."""
    rows = [np.concatenate([leaf, empty[:1]]) for leaf, empty in zip(targets, reference.padding(), strict=True)]
    targets = type(targets)(*rows)
    targets.ptx[-1, 1:] = 1.0
    return targets


def test_ptx_adds_its_own_mean_and_does_not_dilute_the_policy_loss():
    _, targets, logprob = problem(9)
    more = np.concatenate([logprob, np.random.default_rng(2).normal(-3, 1, (1, LENGTH))])
    loss = CombinedLoss(K25Loss(0.7, 1.4, 0.05), PTX(0.3))
    exit = np.full((ROWS + 1, LENGTH), LENGTH)
    rows = Rows(jnp.asarray(exit), jnp.arange(LENGTH))
    wide = with_ptx(targets)

    def terms(logprob):
        denominators = loss.denominators(wide)
        sums = loss(TokenScores(logprob), wide, rows)
        return {name: total / denominators[name] for name, (total, _) in sums.items() if total is not None}

    alone, gradient = value_and_gradient(K25Loss(0.7, 1.4, 0.05), logprob, targets)
    found = terms(jnp.asarray(more, jnp.float32))
    np.testing.assert_allclose(found["policy"], alone, rtol=1e-6)
    np.testing.assert_allclose(found["ptx"], -0.3 * more[-1, 1:].mean(), rtol=1e-6)
    both = jax.grad(lambda x: sum(terms(x).values()))(jnp.asarray(more, jnp.float32))
    np.testing.assert_allclose(both[:-1], gradient, rtol=1e-6)
    np.testing.assert_allclose(both[-1], np.r_[0.0, np.full(LENGTH - 1, -0.3 / (LENGTH - 1))], rtol=1e-6)


def test_losses_with_a_term_of_one_name_do_not_combine():
    _, targets, _ = problem(1)
    with pytest.raises(ValueError, match="two losses have the term 'policy'"):
        CombinedLoss(Reinforce(), K2Loss(0.1)).denominators(targets)


def test_the_configuration_adds_ptx_and_entropy():
    loss = make_policy_loss(PolicyLossConfig(ptx=0.1, ptx_rows=1), entropy=True)
    _, targets, _ = problem(1)
    assert loss.entropy and set(loss.denominators(targets)) == {"policy", "tokens", "ptx"}
    assert not make_policy_loss(PolicyLossConfig()).entropy
