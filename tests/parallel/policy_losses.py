"""All policy losses at once, each with terms of its own names, and rows with their targets."""

import dataclasses

import numpy as np

from k2jax.config import PolicyLossConfig
from k2jax.losses import CombinedLoss, Loss, empty_targets, make_policy_loss

TURNS, RESPONSES = 5, 3  # of a row at most
BAND = {"ratio_low": 0.8, "ratio_high": 1.25}
CONFIGS = {
    "k2": PolicyLossConfig(name="k2", tau=0.1),
    "k2.5": PolicyLossConfig(name="k2.5", tau=0.1, **BAND),
    "kat": PolicyLossConfig(name="kat", **BAND),
    "kat tokens": PolicyLossConfig(name="kat", aggregation="token", **BAND),
    "reinforce and ptx": PolicyLossConfig(name="reinforce", ptx=0.3, ptx_rows=1),
}


class Named(Loss):
    """A loss whose terms begin with a name."""

    def __init__(self, name, loss):
        self.name, self.loss, self.entropy = name, loss, loss.entropy

    def denominators(self, targets):
        return {f"{self.name}: {term}": count for term, count in self.loss.denominators(targets).items()}

    def __call__(self, scores, targets, rows):
        return {f"{self.name}: {term}": sums for term, sums in self.loss(scores, targets, rows).items()}

    def temperature(self, targets):
        return self.loss.temperature(targets)


def every_policy_loss():
    return CombinedLoss(*[Named(name, make_policy_loss(config, entropy=True)) for name, config in CONFIGS.items()])


def with_policy_targets(row, rng):
    """A row with targets: most documents are a prompt and a response of one or two turns, some are curated text."""
    length = len(row.tokens)
    targets = empty_targets(length, TURNS, RESPONSES)
    turn = 0
    for number, start in enumerate(np.flatnonzero((row.parent < 0) & (row.exit > np.arange(length)))):
        end, first = row.exit[start], start + 1 + rng.integers(0, 2)
        if rng.random() < 0.25:
            targets.ptx[start + 1 : end] = 1
            continue
        middle = rng.integers(first + 1, end + 1)
        advantage, temperature = rng.normal(), rng.choice([0.7, 1.0, 1.3])
        turns = [span for span in (np.arange(first, middle), np.arange(middle + 1, end)) if len(span)]
        for span in turns:
            targets.mask[span], targets.weight[span] = 1, 1
            targets.advantage[span], targets.temperature[span] = advantage, temperature
            targets.positive_advantage[span] = max(advantage, 0)
            targets.old_logprob[span] = rng.normal(-5.7, 0.4, len(span))
            targets.behavior_logprob[span] = targets.old_logprob[span] + rng.normal(0, 0.1, len(span))
            targets.turn_first[turn], targets.turn_last[turn], targets.turn_response[turn] = span[0], span[-1], number
            targets.turn_advantage[turn], targets.turn_tokens[turn] = advantage, len(span)
            targets.turn_weight[turn] = 1 / len(turns)
            turn += 1
        targets.response_advantage[number], targets.response_weight[number] = advantage, 1
        targets.response_tokens[number] = sum(map(len, turns))
    return dataclasses.replace(row, targets=targets)
