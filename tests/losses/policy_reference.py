"""Policy objectives in NumPy float64, by loops over responses, turns and tokens, and random batches for them."""

from typing import NamedTuple

import numpy as np

from k2jax.losses import PolicyTargets, empty_targets

ROWS, LENGTH, TURNS, RESPONSES = 3, 16, 6, 4


class Response(NamedTuple):
    """A response: its row, its advantage, and for each turn the indices of its tokens."""

    row: int
    advantage: float
    turns: list[list[int]]

    @property
    def tokens(self):
        return [token for turn in self.turns for token in turn]


def random_responses(rng, turns=None):
    """Responses at random places of rows, each with a prompt; ``turns`` fixes the tokens of each turn."""
    responses = []
    for row in range(ROWS):
        end, used = 0, 0
        for _ in range(rng.integers(1, RESPONSES)):
            start, parts = end + 1, []
            for length in turns or rng.integers(1, 4, rng.integers(1, 3)):
                if used == TURNS or start + length > LENGTH - 1:
                    break
                parts.append(list(range(start, start + length)))
                start, used = start + length + 1, used + 1  # an observation of one token lies between turns
            if parts:
                responses.append(Response(row, rng.normal(), parts))
                end = start
    return responses


def targets_of(responses, rng, spread=0.5):
    """The targets of the responses ``[ROWS, ...]``, and log-probabilities float64 ``[ROWS, LENGTH]`` near the old."""
    rows = [empty_targets(LENGTH, TURNS, RESPONSES) for _ in range(ROWS)]
    turns, counts = [0] * ROWS, [0] * ROWS
    for response in responses:
        row, leaves = response.row, rows[response.row]
        tokens = response.tokens
        leaves.mask[tokens] = leaves.weight[tokens] = 1
        leaves.advantage[tokens] = response.advantage
        leaves.positive_advantage[tokens] = max(response.advantage, 0)
        leaves.temperature[tokens] = 1
        leaves.response_advantage[counts[row]] = response.advantage
        leaves.response_tokens[counts[row]] = len(tokens)
        leaves.response_weight[counts[row]] = 1
        for turn in response.turns:
            leaves.turn_first[turns[row]], leaves.turn_last[turns[row]] = turn[0], turn[-1]
            leaves.turn_response[turns[row]] = counts[row]
            leaves.turn_advantage[turns[row]] = response.advantage
            leaves.turn_tokens[turns[row]] = len(turn)
            leaves.turn_weight[turns[row]] = 1 / len(response.turns)
            turns[row] += 1
        counts[row] += 1
    targets = PolicyTargets(*[np.stack(leaf) for leaf in zip(*rows, strict=True)])
    sampled = targets.mask > 0
    old = np.where(sampled, rng.normal(-2.0, 0.5, sampled.shape), 0.0).astype(np.float32)
    behavior = np.where(sampled, old + rng.normal(0.0, 0.1, sampled.shape), 0.0).astype(np.float32)
    # Prompts and padding have scores too, which must not matter.
    logprob = np.where(sampled, old + rng.normal(0.0, spread, sampled.shape), rng.normal(-3.0, 1.0, sampled.shape))
    return targets._replace(old_logprob=old, behavior_logprob=behavior), logprob


def padding():
    """The targets of rows of padding."""
    return PolicyTargets(*[np.stack([leaf] * ROWS) for leaf in empty_targets(LENGTH, TURNS, RESPONSES)])


def k25(logprob, old, responses, *, low, high, tau):
    """Kimi K2.5, equation 1, negated: outside the band the ratio is a constant."""
    total, count = 0.0, 0
    for response in responses:
        for token in response.tokens:
            log_ratio = logprob[response.row, token] - old[response.row, token]
            clipped = min(max(np.exp(log_ratio), low), high)
            total -= clipped * response.advantage - tau * log_ratio**2
            count += 1
    return total / count


def k2(logprob, old, responses, *, tau):
    """Kimi K2, the squared objective of section 3.2.3 over 2 tau."""
    total = 0.0
    for response in responses:
        row, tokens = response.row, response.tokens
        log_ratio = sum(logprob[row, token] - old[row, token] for token in tokens)
        total += (response.advantage - tau * log_ratio) ** 2
    return total / (2 * tau) / len(responses)


def gspo(logprob, old, responses, *, low, high, aggregation):
    """The turns' ratios are geometric means; the smaller of the two products counts."""
    total, weights = 0.0, 0.0
    for row, advantage, turns in responses:
        for turn in turns:
            ratio = np.exp(np.mean([logprob[row, token] - old[row, token] for token in turn]))
            gain = min(ratio * advantage, min(max(ratio, low), high) * advantage)
            weight = len(turn) if aggregation == "token" else 1 / len(turns)
            total, weights = total - weight * gain, weights + weight
    return total / weights


def reinforce(logprob, old, responses):
    """The surrogate of the policy gradient, less its value at the old policy."""
    gains = [
        response.advantage * (logprob[response.row, token] - old[response.row, token])
        for response in responses
        for token in response.tokens
    ]
    return -float(np.mean(gains))


def gradient_of(function, logprob, step=1e-6):
    """Central differences float64 of a function of ``[ROWS, LENGTH]``."""
    gradient = np.zeros_like(logprob)
    for index in np.ndindex(logprob.shape):
        ends = []
        for sign in (1, -1):
            moved = logprob.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient
