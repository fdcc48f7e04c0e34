"""What an iteration's rollouts say of the model: rewards by class, lengths, cuts, and the rate of generation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from k2jax.config.schema import Config
from k2jax.rl.rewards import budgeted_reward
from k2jax.rl.rollouts import PromptGroup


def iteration_record(
    config: Config, groups: Sequence[PromptGroup], sampled_tokens: int, seconds: float
) -> dict[str, float]:
    """Metrics of the groups that were completed in an iteration.

    Args:
        config: the experiment.
        groups: complete ones.
        sampled_tokens: in the iteration, of complete groups or not.
        seconds: wall time of the rollouts, scoring included [s].
    """
    rewards, right, lengths, cut, masked = defaultdict(list), [], [], [], 0
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.status == "masked":
                masked += 1
                continue
            rewards[group.prompt.kind].append(budgeted_reward(trajectory, config.rl.tasks[group.prompt.kind]))
            right.append(trajectory.reward.value >= config.rl.correct_reward)
            lengths.append(trajectory.sampled_tokens)
            cut.append(trajectory.status == "truncated")
    record: dict[str, float] = {
        "groups": len(groups),
        "masked_samples": masked,
        "sampled_tokens": sampled_tokens,
        "rollout_seconds": seconds,
        "rollout_tokens_per_second": sampled_tokens / seconds,
    }
    if not lengths:
        return record
    every = [reward for of_kind in rewards.values() for reward in of_kind]
    record |= {
        "reward": float(np.mean(every)),
        "accuracy": float(np.mean(right)),
        "length": float(np.mean(lengths)),
        "truncated": float(np.mean(cut)),
    }
    by_verdict = {"length_right": np.array(right), "length_wrong": ~np.array(right)}
    record |= {name: float(np.mean(np.array(lengths)[of])) for name, of in by_verdict.items() if of.any()}
    if len(rewards) > 1:
        record |= {f"reward/{kind}": float(np.mean(values)) for kind, values in sorted(rewards.items())}
    return record
