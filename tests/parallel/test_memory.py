"""What a pipeline keeps alive, from compiled programs: bounded by stages under 1F1B, by micro-batches in a scan."""

import json

import pytest

from tests.emulated import run_on

PROGRAM = """
import json
import jax
from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.train.program import Program
from tests.parallel.tiny import config_of

found = {}
for schedule in ("1f1b", "scan"):
    for micro_batches in (2, 16, 32):
        overrides = {"parallel.stage": 4, "parallel.schedule": schedule, "train.micro_batches": micro_batches}
        config = config_of(overrides | {"train.batch_size": micro_batches, "data.sequence_length": 1024})
        program = Program(config, jax.devices()[:4])
        function = make_loss_and_gradients(config, program.layout)
        state, batch = program.abstract()
        gradients = jax.jit(lambda params, batch: function(program.layout.to_compute(params, "float32"), batch))
        memory = gradients.lower(state.params, batch).compile().memory_analysis()
        found[f"{schedule} {micro_batches}"] = memory.temp_size_in_bytes
print(json.dumps(found))
"""


@pytest.mark.slow
def test_1f1b_keeps_less_than_half_of_what_a_scan_keeps():
    bytes_ = json.loads(run_on(4, "-c", PROGRAM, timeout=900))
    one = 1024 * 32 * 4  # an activation [1, 1024, 32]
    grown = {name: (size - bytes_[name.split()[0] + " 2"]) / one for name, size in bytes_.items()}
    live = {"1f1b": 2 + grown["1f1b 16"], "scan": 5 + grown["scan 16"]}  # slots, and ticks, of two micro-batches
    assert live["1f1b"] <= 0.5 * live["scan"], (live, bytes_)
    assert abs(grown["1f1b 32"] - grown["1f1b 16"]) <= 1, bytes_
    assert grown["scan 32"] - grown["scan 16"] >= 15, bytes_
