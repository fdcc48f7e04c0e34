"""A loss of three terms over tokens, turns and branches that the library has never heard of, and its targets."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from k2jax.losses import Loss

TURNS = 4  # of a row at most, and as many branches


class TurnLoss(Loss):
    """A ratio per turn times its advantage, squared log-probabilities of branches, and an entropy bonus."""

    entropy = True

    def denominators(self, targets):
        return {
            "turns": jnp.asarray((targets["advantage"] != 0).sum(), jnp.float32),
            "branches": jnp.asarray((targets["leaves"] >= 0).sum(), jnp.float32),
            "entropy": targets["mask"].sum(),
        }

    def __call__(self, scores, targets, rows):
        mask, turn, advantage = targets["mask"], targets["turn"], targets["advantage"]
        shift = rows.segment_sum(mask * (scores.logprob - targets["behaviour"]), turn, TURNS)
        ratio = jnp.exp(shift / jnp.maximum(rows.segment_sum(mask, turn, TURNS), 1.0))
        # The ratio of its turn also multiplies every token: sums of a row go back to the row's tokens.
        per_token = jnp.take_along_axis(ratio * advantage, jnp.maximum(turn, 0), axis=1) * mask * scores.logprob
        path = rows.path_sum(mask * scores.logprob, targets["leaves"])
        entropy = rows.sum(mask * scores.entropy)
        return {
            "turns": (
                -rows.sum(ratio * advantage) - 0.1 * rows.sum(per_token),
                {"ratio": rows.sum(ratio), "shift_max": rows.max(jnp.abs(shift))},
            ),
            "branches": (rows.sum(1e-3 * path**2), {}),
            "entropy": (-0.1 * entropy, {"nats": entropy}),
        }

    def temperature(self, targets):
        return 1.0 + targets["turn"] % 2


def with_turns(row, rng):
    """A row with targets of the loss: every document is a branch of one or two turns."""
    length = len(row.tokens)
    starts = np.flatnonzero((row.parent < 0) & (row.exit > np.arange(length)))
    targets = {
        "mask": row.targets["weights"],
        "turn": np.zeros(length, np.int32),
        "behaviour": rng.normal(-5.0, 0.1, length).astype(np.float32) * row.targets["weights"],
        "advantage": np.zeros(TURNS, np.float32),
        "leaves": np.full(TURNS, -1, np.int32),
    }
    for number, start in enumerate(starts):
        end = row.exit[start]
        targets["turn"][start:end] = 2 * number + (np.arange(start, end) >= (start + end) // 2)
        targets["leaves"][number] = end - 1
        targets["advantage"][2 * number : 2 * number + 2] = rng.normal(size=2)
    return dataclasses.replace(row, targets=targets)
