"""What a pipeline keeps alive, from compiled programs: bounded by stages under 1F1B, by micro-batches in a scan."""

import json

import jax
import pytest

from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.train.program import Program
from tests.emulated import run_on
from tests.parallel.tiny import config_of


def temporary_bytes(executor, micro_batches):
    """Temporary memory of one device in the compiled gradients of a step with four stages."""
    overrides = {"parallel.stage": 4, "parallel.executor": executor, "train.micro_batches": micro_batches}
    config = config_of(overrides | {"train.batch_size": micro_batches, "data.sequence_length": 1024})
    program = Program(config, jax.devices()[:4])
    function = make_loss_and_gradients(config, program.layout, program.loss)
    state, batch = program.abstract()
    gradients = jax.jit(lambda params, batch: function(program.layout.to_compute(params, "float32"), batch))
    return gradients.lower(state.params, batch).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_1f1b_keeps_less_than_half_of_what_a_scan_keeps():
    # In the order in which the tests' programs run, 1F1B takes two activations more.
    bytes_ = json.loads(run_on(4, "-m", "tests.parallel.test_memory", only_compiles=True).splitlines()[-1])
    one = 1024 * 32 * 4  # an activation [1, 1024, 32]
    grown = {name: (size - bytes_[name.split()[0] + " 2"]) / one for name, size in bytes_.items()}
    live = {
        "1f1b": 2 + grown["1f1b 16"],
        "autodiff": 5 + grown["autodiff 16"],
    }
    assert live["1f1b"] <= 0.5 * live["autodiff"], (live, bytes_)
    assert abs(grown["1f1b 32"] - grown["1f1b 16"]) <= 1, bytes_
    assert grown["autodiff 32"] - grown["autodiff 16"] >= 15, bytes_


if __name__ == "__main__":
    cases = [(executor, micro_batches) for executor in ("1f1b", "autodiff") for micro_batches in (2, 16, 32)]
    print(json.dumps({f"{executor} {count}": temporary_bytes(executor, count) for executor, count in cases}))
