"""Metrics of an iteration's episodes: rewards by class, lengths, cuts, rate of generation, and use of the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from k2jax.agents.mixture import CRITIC
from k2jax.agents.verifier import FAILED
from k2jax.config.schema import Config
from k2jax.inference.stats import EngineStats
from k2jax.rl.groups import OWN_TERMS, PromptGroup, total_reward
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import POLICY


def iteration_record(
    config: Config, groups: Sequence[PromptGroup], sampled_tokens: int, seconds: float
) -> dict[str, float]:
    """Metrics of the groups that were completed in an iteration.

    Args:
        config: the experiment.
        groups: complete ones, with the terms of their rewards. Rewards and lengths are those of answers; the policy's
            verdicts in the closed loop have keys of their own, beside those of the judge whose verdicts give rewards;
            see ``methods.critic``.
        sampled_tokens: in the iteration, of answers that are complete or go on.
        seconds: wall time of the rollouts, scoring included [s].
    """
    rewards, right, verified, lengths, cut, masked = defaultdict(list), [], [], [], [], 0
    answered = [group for group in groups if group.prompt.kind != CRITIC]
    for group in answered:
        task = config.rl.tasks[group.prompt.kind]
        rewards_K = total_reward([term for term in group.terms if term.name in OWN_TERMS])
        for reward, trajectory in zip(rewards_K, group.trajectories, strict=True):
            if trajectory.status == "masked":
                masked += 1
                continue
            rewards[group.prompt.kind].append(float(reward))
            if task.is_verified:
                right.append(trajectory.reward.value >= config.rl.correct_reward)
                verified.append(trajectory.sampled_tokens)
            lengths.append(trajectory.sampled_tokens)
            cut.append(trajectory.status == "truncated")
    record: dict[str, float] = {
        "groups": len(answered),
        "masked_samples": masked,
        "failed_verdicts": sum(
            _failed_its_verifier(trajectory) for group in answered for trajectory in group.trajectories
        ),
        "sampled_tokens": sampled_tokens,
        "rollout_seconds": seconds,
        "rollout_tokens_per_second": sampled_tokens / seconds,
    }
    if not lengths:
        return record
    every = [reward for of_kind in rewards.values() for reward in of_kind]
    record |= {
        "reward": float(np.mean(every)),
        "length": float(np.mean(lengths)),
        "truncated": float(np.mean(cut)),
    }
    if right:
        record["accuracy"] = float(np.mean(right))
    by_verdict = {"length_right": np.array(right, bool), "length_wrong": ~np.array(right, bool)}
    record |= {name: float(np.mean(np.array(verified)[of])) for name, of in by_verdict.items() if of.any()}
    record |= _reward_parts(answered)
    if len(rewards) > 1:
        record |= {f"reward/{kind}": float(np.mean(values)) for kind, values in sorted(rewards.items())}
    return record


def _reward_parts(groups: Sequence[PromptGroup]) -> dict[str, float]:
    """Mean and weight of each term, by class, where a class's reward is a sum of several."""
    parts, weights = defaultdict(list), {}
    for group in groups:
        own = [term for term in group.terms if term.name in OWN_TERMS]
        if sum(bool(term.weight) for term in own) > 1:
            for term in own:
                parts[group.prompt.kind, term.name].extend(term.values_K[group.counted_K])
                weights[group.prompt.kind, term.name] = float(term.weight)
    record = {f"reward_part/{kind}/{name}": float(np.mean(of)) for (kind, name), of in sorted(parts.items()) if of}
    return record | {f"reward_weight/{kind}/{name}": weight for (kind, name), weight in sorted(weights.items())}


def _failed_its_verifier(trajectory: Trajectory) -> bool:
    """Whether a verifier that judges every answer failed on this one."""
    return trajectory.reward is not None and FAILED in trajectory.reward.info


def engine_record(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """How an iteration's rollouts used the engine.

    Args:
        before: its counters before them.
        after: those after them.

    Returns:
        ``decode_steps``, ``prefill_tokens``, and ``slots_used``: the share of the slots, over all decode steps, that
        gave a token.
    """
    steps, tokens = after.decode_steps - before.decode_steps, after.decode_tokens - before.decode_tokens
    record = {"decode_steps": steps, "prefill_tokens": after.prefill_tokens - before.prefill_tokens}
    return record | ({"slots_used": tokens / (steps * after.slots)} if steps else {})


def busy_record(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Shares of the time of the rollouts in which the engine of each role stepped; ``engine_busy`` is the policy's.

    Args:
        before: seconds for which each had stepped before the rollouts, by role [s].
        after: those after them.
        seconds: wall time of the rollouts [s].
    """
    shares = {role: (after[role] - before[role]) / seconds for role in after}
    return {"engine_busy" if role == POLICY else f"engine_busy/{role}": share for role, share in shares.items()}


def staleness_record(groups: Sequence[PromptGroup], version: int) -> dict[str, float]:
    """``stale_tokens``, the share of sampled tokens of older weights than ``version``, and ``staleness``, their age."""
    nodes = [node for group in groups for each in group.trajectories if each is not None for node in each.nodes]
    ages = np.concatenate([np.zeros(0, np.int64), *(version - node.versions[node.mask] for node in nodes)])
    total = max(1, len(ages))
    return {"stale_tokens": float(np.sum(ages > 0)) / total, "staleness": float(np.sum(ages)) / total}


def oldest_version(trajectories: Sequence[Trajectory]) -> float:
    """The oldest version of weights that chose a token of some episodes; infinite where none was sampled."""
    nodes = [node for each in trajectories for node in each.nodes]
    return min((int(node.versions[node.mask].min()) for node in nodes if node.mask.any()), default=float("inf"))
