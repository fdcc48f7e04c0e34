"""What a policy loss is told of every token, turn and response of a batch; one tuple for all algorithms.

Terms: a *response* is what counts together: all that the policy sampled in one trajectory, or on one path of it. A
*turn* is what it sampled in one call (the whole response in single-turn tasks); it lies on one path. Where rows are
trees, responses share tokens, and each has its own entries in the tables ``[B, N]`` of turns and ``[B, R]`` of
responses. The tables have a fixed width, smaller than S; what a row does not use of them is 0, or NONE in an index. A
loss reads only what it needs, and does not know whether rows are trees.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array
import jax.numpy as jnp
import numpy as np

from k2jax.losses.rows import Rows

NONE = -1  # the index in an entry that is not used
_INDICES = ("domain", "turn_first", "turn_last", "turn_response")


class PolicyTargets(NamedTuple):
    """Targets of a batch of reinforcement learning; every leaf is always there, its first axis is rows.

    Sampled tokens are those that the policy sampled and that are trained on: ``mask`` is not 0. Prompts, observations,
    samples that an error has masked, rows of PTX and padding are not, and every leaf per token but ``ptx`` is 0 (or
    NONE) there. A sampled token has a parent.

    Attributes:
        mask: float32 ``[B, S]``, the number of responses that the token counts in: 1 on sampled tokens that no other
            response shares, 0 on those that are not sampled. Means that are reported weigh tokens by it.
        weight: float32 ``[B, S]``, of the token in means over tokens: ``mask``, or that times another number above 0.
        advantage: float32 ``[B, S]``, the mean over the token's responses (or the token's own).
        positive_advantage: float32 ``[B, S]``, the mean over the token's responses of max(advantage, 0): a bound
            that depends on the sign of each advantage is not that of their mean. Distillation does not change it.
        old_logprob: float32 ``[B, S]``, log pi_old, the denominator of the ratio [nats]: ``behavior_logprob``, or with
            ``old = "recompute"`` the trainer's own log-probability before the first update of the iteration (with MCLA
            a mean over passes).
        behavior_logprob: float32 ``[B, S]``, log mu: as the engine recorded it at sampling, at ``temperature`` [nats].
        temperature: float32 ``[B, S]``, at which the token was sampled; the loss divides the logits by it, and by 1
            where it is 0.
        domain: int32 ``[B, S]``, number of the token's class of tasks, by which tokens are weighed and reported; NONE
            where mask is 0. Losses do not read it.
        distill: float32 ``[B, S]``, log pi_teacher - log pi of the token where distillation is a term of its own, else
            0 [nats].
        ptx: float32 ``[B, S]``, weight of the token's cross-entropy in the PTX term; 0 outside rows of PTX, and there
            on tokens without a parent.
        turn_first: int32 ``[B, N]``, index in the row of the turn's first token; NONE where the entry is not used.
        turn_last: int32 ``[B, N]``, of its last token. The turn is the sampled tokens between them on the path from the
            root to the last one.
        turn_response: int32 ``[B, N]``, index of the turn's response in the tables of its row. A response's tokens are
            those of its turns.
        turn_advantage: float32 ``[B, N]``, of the turn's response (or the turn's own).
        turn_tokens: float32 ``[B, N]``, number of sampled tokens of the turn.
        turn_weight: float32 ``[B, N]``, 1 over the number of turns with sampled tokens of the turn's response, so that
            the sum over the batch is its number of responses.
        response_advantage: float32 ``[B, R]``.
        response_tokens: float32 ``[B, R]``, sampled tokens of the response, over all turns.
        response_weight: float32 ``[B, R]``, 1 for every response.
    """

    mask: Array | np.ndarray
    weight: Array | np.ndarray
    advantage: Array | np.ndarray
    positive_advantage: Array | np.ndarray
    old_logprob: Array | np.ndarray
    behavior_logprob: Array | np.ndarray
    temperature: Array | np.ndarray
    domain: Array | np.ndarray
    distill: Array | np.ndarray
    ptx: Array | np.ndarray
    turn_first: Array | np.ndarray
    turn_last: Array | np.ndarray
    turn_response: Array | np.ndarray
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
        width = sizes.get(name.partition("_")[0], length)
        leaves[name] = np.full(width, NONE, np.int32) if name in _INDICES else np.zeros(width, np.float32)
    return PolicyTargets(**leaves)


def turn_sums(values_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
    """Sums over the tokens of every turn ``[B, N]`` of values per token, which are 0 outside sampled tokens."""
    return rows.path_sum(values_BS, targets.turn_last, targets.turn_first)


def response_sums(values_BS: Array, targets: PolicyTargets, rows: Rows) -> Array:
    """Sums over the tokens of every response ``[B, R]`` of values per token, which are 0 outside sampled tokens."""
    sums_BN = turn_sums(values_BS, targets, rows)
    return rows.segment_sum(sums_BN, targets.turn_response, targets.response_tokens.shape[-1])


def token_temperature(targets: PolicyTargets) -> Array:
    """What divides the logits that predict each token, float32 ``[B, S]``: its temperature, 1 where there is none."""
    return jnp.where(targets.temperature > 0, targets.temperature, 1.0)
