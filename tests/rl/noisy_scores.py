"""Forward passes of a model whose router noise depends on where a token lies in a batch."""

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.batch import stack_rows
from k2jax.losses.targets import token_temperature
from k2jax.model import forward, head_weight, token_logprobs
from k2jax.rl.packing.rows import empty_row
from pallas_kernels.routed_experts import routed_experts


def noisy_scores(config, params, sigma, rows):
    """A ``rl.old_logprobs.Score`` that multiplies the gates of each place of a batch of ``rows`` by noise of its own.

    Like a room from which rows are dropped, the noise is a function of the batch: rows that are packed alike get it
    again, and another packing gives a token other noise.
    """
    shape = rows * config.data.sequence_length, config.model.moe.active_experts
    noise_TK = jnp.asarray(np.exp(sigma * np.random.default_rng(0).normal(size=shape)), jnp.float32)

    def experts(x, w13, w2, expert_ids, gates):
        routed = routed_experts(x, w13, w2, expert_ids, gates * noise_TK, impl=config.model.kernels)
        return routed, jnp.zeros((), jnp.int32)

    @jax.jit
    def logprobs(batch):
        hidden_BSD, _ = forward(
            params, batch.tokens, batch.positions, batch.exit, config.model, experts=experts if sigma else None
        )
        temperature = token_temperature(batch.targets)
        return token_logprobs(hidden_BSD, batch.parent, batch.tokens, head_weight(params), temperature)

    def score(packed):
        padding = [empty_row(config.data.sequence_length)] * (rows - len(packed))
        return np.asarray(logprobs(stack_rows([*packed, *padding])))[: len(packed)]

    return score
