"""What a policy loss is told of every token, turn and response of a batch; one tuple for all algorithms.

Terms: a *response* is all that the policy sampled in one trajectory, and a *turn* is what it sampled in one call (the
whole response in single-turn tasks). A turn and a response lie in one row. Tables ``[B, N]`` of turns and ``[B, R]`` of
responses have a fixed width, smaller than S; what a row does not use of them is 0. A loss reads only what it needs.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
import jax.numpy as jnp
import numpy as np

NONE = -1  # the turn and the response of a token that belongs to none


class PolicyTargets(NamedTuple):
    """Targets of a batch of reinforcement learning; every leaf is always there, its first axis is rows.

    Sampled tokens are those that the policy sampled and that are trained on: ``mask`` is 1. Prompts, observations,
    samples that an error has masked, rows of PTX and padding are not, and every leaf per token but ``ptx`` is 0 (or
    NONE) there. A sampled token has a parent.

    Attributes:
        mask: float32 ``[B, S]``, 1 on sampled tokens, else 0.
        weight: float32 ``[B, S]``, of the token in means over tokens: ``mask``, or another number above 0 on sampled
            tokens.
        advantage: float32 ``[B, S]``, of the token's response (or the token's own).
        old_logprob: float32 ``[B, S]``, log pi_old, the denominator of the ratio [nats]: ``behavior_logprob``, or with
            ``old = "recompute"`` the trainer's own log-probability before the first update of the iteration.
        behavior_logprob: float32 ``[B, S]``, log mu: as the engine recorded it at sampling, at ``temperature`` [nats].
        temperature: float32 ``[B, S]``, at which the token was sampled; the loss divides the logits by it, and by 1
            where it is 0.
        turn: int32 ``[B, S]``, index of the token's turn in the tables of its row, from 0; NONE where mask is 0.
        response: int32 ``[B, S]``, index of the token's response in the tables of its row, as ``turn``.
        domain: int32 ``[B, S]``, number of the token's class of tasks, by which tokens are weighed and reported; NONE
            where mask is 0. Losses do not read it.
        distill: float32 ``[B, S]``, log pi_teacher - log pi of the token where distillation is a term of its own, else
            0 [nats].
        ptx: float32 ``[B, S]``, weight of the token's cross-entropy in the PTX term; 0 outside rows of PTX, and there
            on tokens without a parent.
        turn_advantage: float32 ``[B, N]``, of the turn's response (or the turn's own).
        turn_tokens: float32 ``[B, N]``, sampled tokens of the turn: the sum of ``mask`` over it.
        turn_weight: float32 ``[B, N]``, 1 over the number of turns with sampled tokens of the turn's response, so that
            the sum over the batch is its number of responses.
        response_advantage: float32 ``[B, R]``.
        response_tokens: float32 ``[B, R]``, sampled tokens of the response, over all turns.
        response_weight: float32 ``[B, R]``, 1 for every response.
    """

    mask: Array | np.ndarray
    weight: Array | np.ndarray
    advantage: Array | np.ndarray
    old_logprob: Array | np.ndarray
    behavior_logprob: Array | np.ndarray
    temperature: Array | np.ndarray
    turn: Array | np.ndarray
    response: Array | np.ndarray
    domain: Array | np.ndarray
    distill: Array | np.ndarray
    ptx: Array | np.ndarray
    turn_advantage: Array | np.ndarray
    turn_tokens: Array | np.ndarray
    turn_weight: Array | np.ndarray
    response_advantage: Array | np.ndarray
    response_tokens: Array | np.ndarray
    response_weight: Array | np.ndarray


def empty_targets(length: int, turns: int, responses: int) -> PolicyTargets:
    """Targets of one row of padding, NumPy arrays ``[S]``, ``[N]`` and ``[R]`` that a packer fills.

    Args:
        length: tokens of a row, S.
        turns: width of the tables of turns, N.
        responses: width of the tables of responses, R.

    Raises:
        ValueError: a table is as wide as a row, and could not be told from values per token.
    """
    if not 1 <= turns < length or not 1 <= responses < length:
        raise ValueError(f"tables of {turns} turns and {responses} responses do not suit rows of {length} tokens")
    sizes = {"turn": turns, "response": responses}
    leaves = {}
    for name in PolicyTargets._fields:
        table, _, of_table = name.partition("_")
        width = sizes[table] if of_table and table in sizes else length
        leaves[name] = np.full(width, NONE, np.int32) if name in (*sizes, "domain") else np.zeros(width, np.float32)
    return PolicyTargets(**leaves)


def token_temperature(targets: PolicyTargets) -> Array:
    """What divides the logits that predict each token, float32 ``[B, S]``: its temperature, 1 where there is none."""
    return jnp.where(targets.temperature > 0, targets.temperature, 1.0)
