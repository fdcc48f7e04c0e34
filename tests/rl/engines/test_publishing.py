"""A trainer without an engine publishes exactly its weights, cast, and the checksum that engines find theirs by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.inference.engine import Engine
from k2jax.model import cast_params
from k2jax.params import abstract
from k2jax.rl.engines.separate_policy import StoreSync
from k2jax.rl.sync.checkpoint_engine import CheckpointEngine
from k2jax.rl.sync.stored_weights import current_of, load_current
from k2jax.rl.sync.weight_sync import StaleWeightsError
from k2jax.train.program import Program
from tests.parallel.tiny import config_of
from tests.rl.sync.colocated import MESH, assert_holds, logical
from tests.rl.sync.test_weight_sync import step

EIGHT = pytest.mark.devices(8)


def engine_of(program, dtype):
    """An engine of the same model, which waits for weights."""
    specs = program.layout.logical
    params = jax.eval_shape(lambda tree: cast_params(tree, specs, jnp.dtype(dtype)), abstract(specs))
    return Engine(program.config.model, params, slots=2, max_length=32, version=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        pytest.param({}, "bfloat16", id="one device"),
        pytest.param(MESH, "float32", id="stage 2 x expert 2 x data 2", marks=EIGHT),
    ],
)
def test_engines_find_the_logical_weights_bit_for_bit_and_their_checksum(overrides, dtype, tmp_path):
    program = Program(config_of({"train.batch_size": 16, "train.compute_dtype": dtype, **overrides}))
    told, state, store = [], program.init(), CheckpointEngine(tmp_path / "store")

    def announce(version, digest):
        assert (current_of(store.folder) or {}).get("version") != version, "an engine would find it before it is known"
        told.append((version, digest))

    sync = StoreSync(program, store, announce)
    with pytest.raises(StaleWeightsError, match="version None of the weights was published last"):
        sync.check(0)
    engine = None
    for version in range(2):
        stats = sync.push(state.params, version)
        expected = logical(program, state.params, dtype)
        loaded, leaves = load_current(store.folder)
        leaves = {name: np.array(array) for name, array in leaves}
        assert loaded == version and leaves.keys() == expected.keys()
        assert stats.bytes == sum(array.nbytes for array in expected.values())
        if engine is None:
            engine = engine_of(program, dtype)
        engine.update_params(leaves, version)
        assert_holds(engine, expected)
        assert told[-1] == (version, engine.weights.digest()) and stats.checksum == told[-1][1]
        sync.check(version)
        state = step(state)
    assert told[0][1] != told[1][1]
    with pytest.raises(StaleWeightsError, match="version 1 of the weights was published last, and the trainer is at 2"):
        sync.check(2)
    store.remove()
