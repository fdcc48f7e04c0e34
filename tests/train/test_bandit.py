"""A bandit learns with a loss of its own: nothing between the loss and the optimizer knows what is trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import pack_row, stack_rows
from k2jax.losses import Loss
from k2jax.model import forward, head_weight
from k2jax.train.program import Program
from tests.train.tiny import tiny

ARMS, ROWS = 8, 16


class Reinforce(Loss):
    """-advantage x log-probability of the arm that was pulled."""

    def denominators(self, targets):
        return {"policy": jnp.float32(targets["advantage"].size / targets["advantage"].shape[-1])}

    def __call__(self, scores, targets, rows):
        return {"policy": (-rows.sum(targets["advantage"] * scores.logprob), {})}


@pytest.mark.slow
def test_a_bandit_learns_which_arm_pays_in_each_context(tmp_path):
    small = {"model.layers": 1, "model.dense_layers": 0, "train.batch_size": ROWS, "train.steps": 60}
    config = tiny(tmp_path, **small)
    program = Program(config, jax.devices()[:1], Reinforce())
    state, length, rng = program.init(), config.data.sequence_length, np.random.default_rng(0)
    model = jax.jit(lambda params, tokens: forward(params, tokens, None, None, config.model)[0] @ head_weight(params).T)
    rewards = []
    for _ in range(config.train.steps):
        contexts = rng.integers(0, ARMS, ROWS)
        logits = np.asarray(model(state.params, jnp.asarray(contexts)[:, None]))[:, 0, :ARMS]
        arms = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        reward = (arms == (contexts + 3) % ARMS).astype(np.float32)
        rows = [pack_row([np.array([context, arm])], length) for context, arm in zip(contexts, arms, strict=True)]
        batch = stack_rows(rows)
        advantage = batch.targets["weights"] * (reward - 1 / ARMS)[:, None]
        batch = program.batch_sharding().put(dataclasses.replace(batch, targets={"advantage": advantage}))
        state, metrics = program.step(state, batch)
        rewards.append(reward.mean())
    assert metrics.healthy and set(metrics.shares.terms) == {"policy"}
    assert np.mean(rewards[:5]) < 0.4 and np.mean(rewards[-5:]) > 0.9
