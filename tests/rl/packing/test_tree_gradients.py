"""Gradients of a model's weights over rows of trees are those over every path by itself, for every objective."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import stack_rows
from k2jax.config import PackingConfig
from k2jax.losses import Loss, make_policy_loss
from k2jax.losses.targets import token_temperature
from k2jax.parallel.gradients import make_loss_and_gradients
from k2jax.rl.packing.rows import empty_row, pack
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.train.program import Program
from tests.parallel.tiny import config_of
from tests.rl.packing.path_reference import CONFIGS, old_logprob, random_samples, without_thinking
from tests.rl.packing.test_tree_training import token_of

LENGTH, ROWS, VOCAB = 128, 8, 300
SMALL = {
    "model.layers": 2,
    "model.dense_layers": 0,
    "train.micro_batches": 2,
    "train.batch_size": ROWS,
    "data.sequence_length": LENGTH,
    "router.balance_loss": 0.0,
}
MESH = {"parallel.data": 2, "parallel.expert": 2, "parallel.stage": 2}


class Chosen(Loss):
    """One of all policy losses, which the targets choose: one program serves them all."""

    def __init__(self):
        self.losses = {name: make_policy_loss(config) for name, config in CONFIGS.items()}

    def denominators(self, targets):
        chosen = targets["chosen"].max()
        counts = {name: loss.denominators(targets["policy"])["policy"] for name, loss in self.losses.items()}
        return {
            name: jnp.where(chosen == number, count, jnp.inf) for number, (name, count) in enumerate(counts.items())
        }

    def __call__(self, scores, targets, rows):
        return {name: (loss(scores, targets["policy"], rows)["policy"][0], {}) for name, loss in self.losses.items()}

    def temperature(self, targets):
        return token_temperature(targets["policy"])


class Gradients:
    """Gradients of the weights by loss, on some devices."""

    def __init__(self, overrides, devices=None):
        self.program = Program(config_of(SMALL | overrides), devices, Chosen())
        program, self.params = self.program, self.program.init().params
        function = make_loss_and_gradients(program.config, program.layout, program.loss)

        @jax.jit
        def gradients(params, batch):
            loss, stats, grads = function(program.layout.to_compute(params, "float32"), batch)
            return loss.total, stats.expert_tokens, program.layout.gradients_to_storage(grads)

        self._gradients = gradients

    def of(self, packed, number):
        """Loss and gradients of the loss of a number; leaves by path in the form of one device."""
        placement, rows = self.program.batch_sharding(), packed.rows
        assert 1 <= len(rows) <= ROWS
        chosen = np.full(LENGTH, number, np.float32)
        rows = [
            dataclasses.replace(row, targets={"policy": row.targets, "chosen": chosen})
            for row in rows + [empty_row(LENGTH)] * (max(placement.rows) + 1 - len(rows))
        ]
        batch = placement.put(stack_rows([rows[row] for row in placement.rows]))
        loss, expert_tokens, grads = jax.block_until_ready(self._gradients(self.params, batch))
        # Statistics of routing count what is stored, once however many paths share it.
        active = self.program.config.model.moe.active_experts
        assert (np.asarray(expert_tokens).sum(-1) == active * packed.stored_tokens).all()
        logical = self.program.checkpoint_layout().logical_params(grads)
        leaves = jax.tree_util.tree_leaves_with_path(logical)
        return float(loss), {jax.tree_util.keystr(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def check(seed, shared_tokens, trees, paths):
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, 32, groups=3, vocab=VOCAB)
    samples += [TrainingSample(without_thinking(rng, lost, (1, 3 + lost, 0), VOCAB), 0.8) for lost in (0, 2)]
    for sample in samples:
        for node in sample.trajectory.nodes:
            if node.mask.any():  # near what an untrained model gives: some ratios are in the band, others outside
                node.logprobs[:] = np.float32(-np.log(VOCAB)) + (node.logprobs + 0.5)
    by_tree, by_path = (pack(samples, LENGTH, PackingConfig(layout, shared_tokens)) for layout in ("tree", "paths"))
    for row in by_tree.rows + by_path.rows:  # as a pass of the trainer would, which IcePop compares with the sampling
        for index in np.flatnonzero(row.targets.mask):
            row.targets.old_logprob[index] = old_logprob(token_of(row, index))
    assert by_tree.stored_tokens < by_path.stored_tokens
    for number, name in enumerate(CONFIGS):
        (loss, grads), (expected_loss, expected) = trees.of(by_tree, number), paths.of(by_path, number)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-7, err_msg=name)
        assert max(np.abs(leaf).max() for leaf in expected.values()) > 1e-4
        for path, leaf in expected.items():
            difference = np.linalg.norm(grads[path] - leaf)
            assert difference <= 1e-5 * np.linalg.norm(leaf), (name, path, difference / np.linalg.norm(leaf))


@pytest.fixture(scope="module")
def one_device():
    return Gradients({}, jax.devices()[:1])


@pytest.mark.parametrize("shared_tokens", ["unique", "paths"])
@settings(max_examples=1)
@given(seed=st.integers(0, 2**16))
def test_on_one_device(one_device, shared_tokens, seed):
    check(seed, shared_tokens, one_device, one_device)


@pytest.mark.slow
@pytest.mark.devices(8)
def test_on_data_times_expert_times_stage(one_device):
    mesh = Gradients(MESH)
    for seed, shared_tokens in enumerate(["unique", "paths", "paths"]):
        check(seed, shared_tokens, mesh, one_device)
