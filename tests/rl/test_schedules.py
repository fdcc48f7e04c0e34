"""The temperature of a class of tasks over a run."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from k2jax.config import TaskConfig
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
