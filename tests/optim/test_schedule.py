"""Learning-rate schedules: Kimi K2's own, continuity, and segments that do not fit."""

import dataclasses

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config.schema import PhaseConfig, ScheduleConfig
from k2jax.errors import UserError
from k2jax.optim.schedule import build_phase_schedule, build_schedule

BATCH = 67_108_864  # 16,384 sequences of 4,096 tokens
K2 = ScheduleConfig(
    kind="wsd",
    warmup_steps=500,
    decay_steps=round(5.5e12 / BATCH),
    decay_shape="cosine",
    floor=0.1,
    anneal_steps=round(460e9 / BATCH),
    anneal_to=0.035,
)


def test_kimi_k2():
    """500 warm-up steps, 2e-4 for 10T tokens, cosine to 2e-5 over 5.5T, then 2e-5 to 7e-6 over 460B."""
    constant = round(10e12 / BATCH)
    steps = constant + K2.decay_steps + K2.anneal_steps
    rate = build_schedule(K2, 2e-4, steps)
    at = {0: 0.0, 250: 1e-4, 500: 2e-4, constant: 2e-4, constant + K2.decay_steps: 2e-5, steps: 7e-6}
    at[constant + K2.decay_steps // 2] = 1.1e-4
    for step, expected in at.items():
        assert float(rate(step)) == pytest.approx(expected, rel=1e-4, abs=1e-12), step


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {0: 0, 5: 0.5, 10: 1, 59: 1, 60: 1, 80: 0.55, 100: 0.1, 200: 0.1}),
        ({"decay_steps": 20}, {79: 1, 80: 1, 90: 0.55, 100: 0.1}),
        ({"decay_shape": "cosine"}, {60: 1, 70: 0.1 + 0.9 * (1 + 0.5**0.5) / 2, 80: 0.55, 100: 0.1}),
        ({"anneal_steps": 10}, {50: 1, 70: 0.55, 90: 0.1, 95: 0.05, 100: 0}),
        ({"anneal_steps": 10, "anneal_to": 0.04}, {90: 0.1, 95: 0.07, 100: 0.04, 150: 0.04}),
        ({"kind": "cosine"}, {10: 1, 55: 0.55, 100: 0.1}),
        ({"kind": "cosine", "decay_steps": 50}, {10: 1, 35: 0.55, 60: 0.1, 99: 0.1}),
        ({"kind": "cosine", "anneal_steps": 30}, {40: 0.55, 70: 0.1, 85: 0.05, 100: 0}),
        ({"kind": "constant"}, {0: 0, 10: 1, 100: 1}),
        ({"warmup_steps": 0}, {0: 1, 60: 1, 100: 0.1}),
        ({"warmup_steps": 0, "kind": "constant"}, {0: 1, 100: 1}),
        ({"decay_steps": 90}, {10: 1, 55: 0.55, 100: 0.1}),
    ],
)
def test_shapes(changes, expected):
    """Fractions of the peak at steps of a run of 100."""
    config = dataclasses.replace(ScheduleConfig(warmup_steps=10), **changes)
    rate = build_schedule(config, 3e-3, 100)
    for step, fraction in expected.items():
        assert float(rate(step)) == pytest.approx(3e-3 * fraction, rel=1e-5, abs=1e-9), step


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (30, 3), (499, 49), (700, 50)])
def test_a_warm_up_that_is_not_given_fits_any_run(steps, warmup):
    rate = build_schedule(ScheduleConfig(), 1.0, steps)
    explicit = build_schedule(ScheduleConfig(warmup_steps=warmup), 1.0, steps)
    every = np.arange(steps + 1)
    np.testing.assert_array_equal(rate(every), explicit(every))


@settings(max_examples=20)
@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(["linear", "cosine"]),
    st.integers(1, 70),
)
def test_rates_rise_then_fall_without_jumps(warmup, decay, anneal, shape, steps):
    config = ScheduleConfig(
        warmup_steps=warmup, decay_steps=decay, decay_shape=shape, anneal_steps=anneal, anneal_to=0.05
    )
    length = decay or round(0.4 * steps)
    assume(warmup + length + anneal <= steps)
    rates = np.asarray(build_schedule(config, 1.0, steps)(np.arange(71)))[: steps + 1]  # one shape for all
    assert (np.diff(rates[: warmup + 1]) >= -1e-6).all() and (np.diff(rates[warmup:]) <= 1e-6).all()
    assert rates.min() >= 0 and rates.max() <= 1 + 1e-6
    steepest = max([1 / max(warmup, 1), np.pi / 2 / max(length, 1), 0.05 / max(anneal, 1)])
    assert np.abs(np.diff(rates)).max() <= steepest + 1e-6


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"warmup_steps": 61}, "does not fit"),
        ({"decay_steps": 91}, "does not fit"),
        ({"anneal_steps": 51}, "does not fit"),
        ({"kind": "cosine", "decay_steps": 91}, "does not fit"),
        ({"kind": "constant", "warmup_steps": 101}, "does not fit"),
        ({"kind": "constant", "decay_steps": 10}, "constant"),
        ({"kind": "linear"}, "kind"),
        ({"decay_shape": "sqrt"}, "decay_shape"),
        ({"floor": -0.1}, "floor"),
        ({"warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_impossible_schedules_are_the_users_mistake(changes, word):
    with pytest.raises(UserError, match=word):
        build_schedule(dataclasses.replace(ScheduleConfig(warmup_steps=10), **changes), 1e-3, 100)


PHASES = (
    PhaseConfig(rate="constant"),
    PhaseConfig(begin=40, rate="cosine", rate_to=0.2),
    PhaseConfig(begin=80, rate="constant"),
    PhaseConfig(begin=90, rate="linear", rate_to=0.1),
)


def phase_rate(step):
    """By hand: warm-up to 1 over 10 steps, constant, cosine to 0.2, constant, linear to 0.1."""
    if step < 40:
        return min(1.0, step / 10)
    if step < 80:
        return 0.2 + 0.8 * (1 + np.cos(np.pi * (step - 40) / 40)) / 2
    return 0.2 if step < 90 else 0.2 - 0.1 * (min(step, 110) - 90) / 20


def test_phases_have_rates_that_begin_where_the_phase_before_ended():
    rate = build_phase_schedule(ScheduleConfig(warmup_steps=10), 1.0, 110, PHASES)
    assert [float(rate(step)) for step in range(115)] == pytest.approx(list(map(phase_rate, range(115))), abs=1e-6)


def test_a_run_that_ends_early_has_the_rates_of_the_whole_run():
    short, whole = (build_phase_schedule(ScheduleConfig(warmup_steps=10), 1.0, steps, PHASES) for steps in (60, 110))
    assert [float(short(step)) for step in range(60)] == [float(whole(step)) for step in range(60)]
    with pytest.raises(UserError, match="warmup_steps 50 is longer than the first phase, 40 steps"):
        build_phase_schedule(ScheduleConfig(warmup_steps=50), 1.0, 110, PHASES)


def test_kimi_k2_in_phases():
    """The same rates as of its schedule, where the anneal is cut in two."""
    begins = np.cumsum([round(tokens / BATCH) for tokens in (10e12, 5.5e12, 400e9)]).tolist()
    phases = [PhaseConfig(rate="constant"), PhaseConfig(begin=begins[0], rate="cosine", rate_to=2e-5)]
    phases += [PhaseConfig(begin=begins[1], rate="linear", rate_to=8.7e-6)]
    phases += [PhaseConfig(begin=begins[2], rate="linear", rate_to=7e-6)]
    steps = begins[1] + K2.anneal_steps
    ours, theirs = build_phase_schedule(K2, 2e-4, steps, phases), build_schedule(K2, 2e-4, steps)
    for step in range(0, steps, 9973):
        assert float(ours(step)) == pytest.approx(float(theirs(step)), rel=2e-3), step
