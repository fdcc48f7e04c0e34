"""How a class of tasks is sampled over a run and in its evaluations."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.client import Sampling
from k2jax.config import TaskConfig, defaults, resolve, task
from k2jax.rl.episodes import message_sampling
from k2jax.rl.schedules import sampling_temperature


def test_the_temperature_falls_on_a_line_and_then_rests():
    task = TaskConfig(temperature=1.25, temperature_final=0.75, temperature_decay=0.5)
    found = [sampling_temperature(task, iteration, 8) for iteration in range(8)]
    assert found == [1.25, 1.125, 1.0, 0.875, 0.75, 0.75, 0.75, 0.75]


def test_without_decay_the_temperature_stays():
    task = TaskConfig(temperature=0.5, temperature_final=1.0)
    assert {sampling_temperature(task, iteration, 10) for iteration in range(12)} == {0.5}


@given(st.floats(0.01, 3), st.floats(0.01, 3), st.floats(0, 1), st.integers(0, 100), st.integers(1, 100))
def test_a_temperature_lies_between_its_ends_and_is_a_float32(first, last, share, iteration, iterations):
    task = TaskConfig(temperature=first, temperature_final=last, temperature_decay=share)
    found = sampling_temperature(task, iteration, iterations)
    assert found == float(np.float32(found))
    assert min(first, last) * (1 - 1e-6) <= found <= max(first, last) * (1 + 1e-6)
    assert share == 0 or iteration < share * iterations or found == float(np.float32(last))


@pytest.mark.parametrize(("iteration", "iterations"), [(-1, 10), (0, 0)])
def test_an_iteration_that_does_not_exist_is_refused(iteration, iterations):
    with pytest.raises(ValueError, match="does not exist"):
        sampling_temperature(TaskConfig(), iteration, iterations)


def test_training_and_evaluation_are_sampled_as_their_own_keys_say():
    config = defaults("rl")
    config.rl.tasks.sums = task(top_p=0.9, top_k=5, temperature=0.5, max_tokens=7)
    config.rl.eval_temperature, config.rl.eval_top_p, config.rl.eval_top_k = 0.25, 0.75, 3
    config = resolve(config)
    drawn = {purpose: message_sampling(config, "sums", purpose, 1) for purpose in ("train", "eval")}
    values = {purpose: (each.temperature, each.top_p, each.top_k, each.max_tokens) for purpose, each in drawn.items()}
    assert values == {"train": (0.5, 0.9, 5, 7), "eval": (0.25, 0.75, 3, 7)}
    assert message_sampling(config, "sums", "eval", 1, greedy=True) == Sampling(7, temperature=0.0)
