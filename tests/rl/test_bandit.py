"""Bandits: one step of any policy loss raises the arms that were rewarded, and tokens keep their temperatures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from k2jax.batch import PackedBatch, pack_row, stack_rows
from k2jax.losses import PolicyTargets, empty_targets, make_policy_loss
from k2jax.model import forward, head_weight
from k2jax.parallel.objective import Objective
from k2jax.train.program import Program
from tests.parallel.policy_losses import CONFIGS
from tests.train.tiny import tiny

CONTEXTS, ARMS = 4, 6


def pulls(arms, advantages, old, temperatures, length):
    """Targets ``[B, length]`` of one pull in each row: token 0 is the context, token 1 the arm."""
    rows = []
    for advantage, logprob, temperature in zip(advantages, old, temperatures, strict=True):
        row = empty_targets(length, 1, 1)
        row.mask[1] = row.weight[1] = row.turn_first[0] = row.turn_last[0] = 1
        row.turn_response[0] = 0
        row.advantage[1], row.temperature[1] = advantage, temperature
        row.positive_advantage[1] = max(advantage, 0)
        row.old_logprob[1] = row.behavior_logprob[1] = logprob
        row.turn_advantage[0] = row.response_advantage[0] = advantage
        for table in (row.turn_tokens, row.turn_weight, row.response_tokens, row.response_weight):
            table[0] = 1
        rows.append(row)
    return PolicyTargets(*[np.stack(leaves) for leaves in zip(*rows, strict=True)])


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_raises_the_rewarded_arm_of_a_table_and_lowers_the_other(name):
    """The head is a table of logits, and each token's ratio is taken at its own temperature."""
    rng = np.random.default_rng(0)
    table_VD = rng.normal(size=(ARMS, CONTEXTS)).astype(np.float32)
    temperatures, arms = np.array([0.5, 1.0, 2.0, 1.0]), np.array([1, 2, 3, 4])
    advantages = np.array([1.0, -1.0, 1.0, -1.0])
    each = np.arange(CONTEXTS)
    old = log_softmax(table_VD.T / temperatures[:, None])[each, arms]
    targets = pulls(arms, advantages, old, temperatures, 3)
    targets.ptx[:, 2] = 1e-6  # the loss with PTX wants some curated text
    tokens = np.stack([each, arms, each], 1).astype(np.int32)
    parent = np.tile(np.array([-1, 0, 1], np.int32), (CONTEXTS, 1))
    batch = PackedBatch(tokens, tokens * 0, np.full_like(tokens, 3), parent, targets=jax.tree.map(jnp.asarray, targets))
    hidden_BSD = jnp.zeros((CONTEXTS, 3, CONTEXTS)).at[each, 0, each].set(1.0)
    loss = make_policy_loss(CONFIGS[name])
    objective = Objective(loss, loss.denominators(targets), 0.0)

    def policy(table_VD):
        shares = objective.shares(hidden_BSD, table_VD, batch)
        return shares.terms["policy"], shares.metrics

    gradient_VD, metrics = jax.grad(policy, has_aux=True)(jnp.asarray(table_VD))
    assert metrics["tokens/drift"] < 1e-6
    after = log_softmax((table_VD - 0.1 * np.asarray(gradient_VD)).T / temperatures[:, None])[each, arms]
    assert (np.sign(after - old) == advantages).all()


@pytest.mark.slow
def test_a_training_step_raises_rewarded_arms_sampled_at_different_temperatures(tmp_path):
    config = tiny(tmp_path, **{"train.batch_size": 8, "optimizer.schedule.warmup_steps": 0})
    program, length, rng = (
        Program(config, jax.devices()[:1], make_policy_loss(CONFIGS["k2.5"])),
        32,
        np.random.default_rng(1),
    )
    state = program.init()
    contexts = np.arange(8)
    model = jax.jit(
        lambda params: forward(params, contexts[:, None], None, None, config.model)[0] @ head_weight(params).T
    )
    temperatures = np.array([0.5, 1.0, 2.0, 4.0] * 2)
    policy = lambda state: log_softmax(np.asarray(model(state.params), np.float64)[:, 0] / temperatures[:, None])  # noqa: E731
    arms, advantages = rng.integers(0, ARMS, 8), np.array([1.0] * 4 + [-1.0] * 4)
    old = policy(state)[contexts, arms]
    batch = stack_rows([pack_row([np.array(pair)], length) for pair in zip(contexts, arms, strict=True)])
    batch = dataclasses.replace(batch, targets=pulls(arms, advantages, old, temperatures, length))
    state, metrics = program.step(state, program.batch_sharding().put(batch))
    assert metrics.healthy and metrics.shares.metrics["tokens/mismatch"] < 1e-5
    moved = policy(state)[contexts, arms] - old
    assert moved[:4].mean() > 0 > moved[4:].mean()
