"""A step in parts is the step of the whole batch."""

import dataclasses

import jax
import numpy as np

from k2jax.batch import pack_row, stack_rows
from k2jax.losses import NLL
from k2jax.train.program import Program
from tests.train.tiny import tiny


def run(program, parts):
    sharding = program.batch_sharding()
    return program.update(program.init(), [sharding.put(part) for part in parts])


def random_batch(rows, length, rng):
    packed = [pack_row([rng.integers(0, 256, rng.integers(2, length)).astype(np.int32)], length) for _ in range(rows)]
    return stack_rows(packed)


def test_parts_with_unequal_weights_add_up_to_the_whole_batch(tmp_path):
    parts, rng = 3, np.random.default_rng(0)
    experts = {"model.layers": 1, "model.dense_layers": 0}
    config = tiny(tmp_path, **experts, **{"train.batch_size": 4, "train.micro_batches": 2})
    batches = [random_batch(4, config.data.sequence_length, rng) for _ in range(parts)]
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    large = dataclasses.replace(config, train=dataclasses.replace(config.train, batch_size=4 * parts))
    state, metrics = run(Program(dataclasses.replace(config, stage="rl"), jax.devices()[:1], NLL()), batches)
    wanted_state, wanted = run(Program(large, jax.devices()[:1]), [whole])
    np.testing.assert_allclose(metrics.loss, wanted.loss, rtol=1e-6)
    np.testing.assert_allclose(metrics.grad_norm, wanted.grad_norm, rtol=1e-5)
    assert int(metrics.tokens) == int(wanted.tokens)
    for ours, theirs in zip(jax.tree.leaves(metrics.stats), jax.tree.leaves(wanted.stats), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(wanted_state.params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
