"""A trainer and its engine on the same devices, for the tests of weight sync.

``python -m tests.rl.sync.colocated`` is one of two processes with a device each; it prints what its pushes said.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from k2jax import processes
from k2jax.config.schema import RolloutConfig
from k2jax.model import cast_params
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.train.program import Program
from tests.inference.tiny import layer_by_layer
from tests.parallel.tiny import config_of

MESH = {"parallel.data": 2, "parallel.stage": 2, "parallel.expert": 2, "parallel.virtual_stages": 2}


def colocated(overrides, rollout, dtype="float32"):
    """Program, training state, engine and weight sync of a tiny model of 5 layers."""
    program = Program(config_of({"train.batch_size": 16, "train.compute_dtype": dtype, **overrides}))
    engine = colocated_engine(program, RolloutConfig(slots=8, max_length=64, **rollout))
    return program, program.init(), engine, WeightSync(program, engine)


def logical(program, params, dtype):
    """Every weight and layer by name as the engine should hold it, cast by NumPy."""
    whole = jax.tree.map(np.array, program.checkpoint_layout().logical_params(params))
    return dict(layer_by_layer(cast_params(whole, program.layout.logical, jnp.dtype(dtype))))


def assert_holds(engine, expected):
    """Every copy on every device is bit for bit what is expected."""

    def check(array, whole):
        assert array.dtype == whole.dtype and array.shape == whole.shape
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(whole[shard.index]).tobytes()

    held = dict(engine.weights.leaves())
    assert held.keys() == expected.keys()
    for name, array in held.items():
        check(array, expected[name])


def _main() -> int:
    assert len(jax.devices()) == 2 == 2 * len(jax.local_devices())
    _, state, engine, sync = colocated({"parallel.expert": 2}, {"expert": 2})
    told = [sync.push(state.params, 0).checksum]
    told.append(sync.push(jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))(state.params), 1).checksum)
    sync.check(1)
    print(json.dumps({"checksums": told, "version": engine.version}), flush=True)
    return 0


if __name__ == "__main__":
    processes.start()
    sys.exit(processes.run_and_exit(_main))
