"""PARL: parallel-agent reinforcement learning of an agent that creates sub-agents (Kimi K2.5, section 3).

    r = lambda1(k) r_parallel + lambda2(k) r_finish + r_perf

The agent is trained; its sub-agents are frozen checkpoints, or the policy as it is, and what they sample enters as an
observation. r_perf is the reward without this method. r_parallel keeps the policy from serial collapse, r_finish from
sub-agents that are started to be counted. Both lie in [0, 1], see ``swarm_metrics``, and their weights go to exactly 0,
so that in the end r_perf alone is maximised.

With ``rl.parl.joint`` the policy also learns as a sub-agent: the episodes that calls of tools have spawned, in which
the policy answers, are further responses of the loss. Sub-agents of other roles stay frozen. With R_i the reward of
episode i without the terms of this method, and A_i its advantage with them, the advantage of its sub-episode j is

    shared: A_ij = A_i
    role:   A_ij = r_ij - mean of r over all sub-episodes of the group

with r_ij = R_i where j was finished, and min(R_i, 0) where it was cut. Baseline and scale of the second one are those
that ``rl.advantage`` names for responses; over groups, each sub-episode then is one response, as an episode is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

import numpy as np

from k2jax.agents.mixture import CRITIC
from k2jax.config.schema import Config, ParlConfig
from k2jax.errors import UserError
from k2jax.rl.advantages import group_advantages
from k2jax.rl.groups import PromptGroup, RewardTerm, total_reward
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.methods.swarm_metrics import finish_value, has_sub_agents, parallel_value, swarm_metrics
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.trajectory import Trajectory
from k2jax.trajectory.steps import NO_CALL, POLICY, ROLE, SPAWNED
from k2jax.trajectory.swarm import swarm_record

TERMS = ("parallel", "finish")
"""Names of the terms."""
_STATE = "parl"


def annealing(parl: ParlConfig, iteration: int, iterations: int, reached: int | None) -> float:
    """What both weights are multiplied with in an iteration: 1 while they are held, then less, and in the end 0.

    The decay begins in iteration ``round(hold * iterations)``, or later where ``hold_until`` waits for a parallelism,
    and lasts ``round(decay * iterations)``, at least one. From its end on the result is exactly 0.

    Args:
        parl: settings.
        iteration: from 0.
        iterations: of the whole run.
        reached: how many iterations were done when one had the parallelism of ``hold_until``; None where none had.

    Raises:
        ValueError: the iteration is negative, or the run has none.
    """
    if iteration < 0 or iterations < 1:
        raise ValueError(f"iteration {iteration} of {iterations} does not exist")
    if not parl.decay or (parl.hold_until and reached is None):
        return 1.0
    begins = max(round(parl.hold * iterations), reached or 0)
    progress = max(0, iteration - begins) / max(1, round(parl.decay * iterations))
    if progress >= 1:
        return 0.0
    return 1.0 - progress if parl.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


class PARL(Method):
    """Terms ``parallel`` and ``finish`` where they have weights, and metrics of all runs that have sub-agents.

    Args:
        config: the experiment.
    """

    def __init__(self, config: Config):
        self._config, self._parl = config, config.rl.parl
        self._reached: int | None = None
        self._has_sub_agents = self._has_terms = bool(self._parl.parallel or self._parl.finish)

    @staticmethod
    def used(config: Config) -> bool:
        """Every run: whether there are sub-agents is known of its episodes alone."""
        return True

    @staticmethod
    def check(config: Config) -> None:
        """See ``Method``."""
        parl = config.rl.parl
        if parl.decay and parl.hold + parl.decay > 1:
            raise UserError(
                f"config.rl.parl.hold {parl.hold} and decay {parl.decay} are more than the run together: its rewards "
                "would not come to 0; lower one of them"
            )
        if parl.hold_until and not (parl.decay and (parl.parallel or parl.finish)):
            raise UserError(
                f"config.rl.parl.hold_until {parl.hold_until} delays a decay that there is not; set rl.parl.decay, and "
                "rl.parl.parallel or finish"
            )
        if not parl.decay and (parl.hold or parl.shape != "linear"):
            raise UserError(
                f"config.rl.parl.hold {parl.hold} and shape {parl.shape} are of a decay that there is not; set "
                "rl.parl.decay, or leave them at their defaults"
            )
        if parl.joint != "off" and config.rl.distill.weight:
            raise UserError(
                f"config.rl.parl.joint {parl.joint} and rl.distill.weight exclude each other: teachers are of classes "
                "of tasks, which sub-agents are not; set one of them to its default"
            )

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> PARL:
        """See ``Method``."""
        return cls(parts.config)

    async def rewards(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Adds the terms of the configuration that have a weight."""
        if not self._has_terms:
            return
        weights = self._weights(step)
        for group in groups:
            values_2K = np.zeros((2, len(group.trajectories)))
            for sample in np.flatnonzero(group.counted_K):
                swarm = swarm_record(group.trajectories[sample])
                values_2K[:, sample] = parallel_value(swarm, self._parl), finish_value(swarm)
            group.terms += [RewardTerm(*term) for term in zip(TERMS, values_2K, weights, strict=True)]

    def samples(self, group: PromptGroup, advantages_K: np.ndarray) -> list[TrainingSample]:
        """The sub-episodes in which the policy has answered, where ``rl.parl.joint`` is on."""
        if self._parl.joint == "off":
            return []
        chosen = np.flatnonzero(group.counted_K)
        pairs = [(i, each) for i in chosen for each in learning_sub_trajectories(group.trajectories[i])]
        if self._parl.joint == "shared":
            return [TrainingSample(each, float(advantages_K[i])) for i, each in pairs]
        rewards_K = total_reward([term for term in group.terms if term.name not in TERMS])
        cut_N = np.array([each.status != "finished" for _, each in pairs], bool)
        rewards_N = np.array([rewards_K[i] for i, _ in pairs])
        rewards_N = np.where(cut_N, np.minimum(rewards_N, 0.0), rewards_N)
        counted_1N = np.ones((1, len(pairs)), bool)
        advantages_N = group_advantages(rewards_N[None], counted_1N, self._config.rl.advantage)[0]
        return [TrainingSample(each, float(a)) for (_, each), a in zip(pairs, advantages_N, strict=True)]

    def record(self, step: int, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics ``swarm/...`` of an iteration, see ``swarm_metrics``, from the first one that has sub-agents on.

        Beside them are ``swarm/parallel_weight`` and ``swarm/finish_weight``, where there are such terms.
        """
        trajectories = _counted(groups)
        self._has_sub_agents = self._has_sub_agents or has_sub_agents(trajectories)
        if not self._has_sub_agents:
            return {}
        record = {f"swarm/{name}": value for name, value in swarm_metrics(trajectories, self._parl).items()}
        if self._has_terms:
            record |= {f"swarm/{name}_weight": each for name, each in zip(TERMS, self._weights(step), strict=True)}
        waits = self._reached is None and self._parl.hold_until and trajectories
        if waits and record["swarm/parallelism"] >= self._parl.hold_until:
            self._reached = step
        return record

    async def evaluate(self, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics ``eval/swarm/...`` of greedy answers, the first of each group; by domain where there are several."""
        firsts = [group.trajectories[0] for group in groups if group.counted_K[0]]
        if not (self._has_sub_agents or has_sub_agents(firsts)):
            return {}
        record = {f"eval/swarm/{name}": value for name, value in swarm_metrics(firsts, self._parl).items()}
        domains = sorted({trajectory.domain for trajectory in firsts})
        for domain in domains if len(domains) > 1 else ():
            of_domain = swarm_metrics([each for each in firsts if each.domain == domain], self._parl)
            kept = [name for name in ("score", "parallelism", "critical_steps") if name in of_domain]
            record |= {f"eval/swarm/{name}/{domain}": of_domain[name] for name in kept}
        return record

    def extra(self) -> dict[str, Any]:
        """Whether there were sub-agents, and when ``rl.parl.hold_until`` was reached; nothing before that."""
        if not self._has_sub_agents:
            return {}
        return {_STATE: {"reached": self._reached}}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continues from what ``extra`` returned."""
        if _STATE in extra:
            self._has_sub_agents, self._reached = True, extra[_STATE]["reached"]

    def _weights(self, step: int) -> tuple[float, float]:
        """The weights of the terms in an iteration from 1."""
        left = annealing(self._parl, step - 1, self._config.train.steps, self._reached)
        return left * self._parl.parallel, left * self._parl.finish


def learning_sub_trajectories(trajectory: Trajectory) -> Iterator[Trajectory]:
    """The sub-episodes at every depth that calls of tools have spawned and in which the policy answers.

    Those that were masked are left out, and so are those of an environment, such as a simulated user.
    """
    links = trajectory.metadata.get(SPAWNED, {})
    for number, spawned in sorted(trajectory.spawned.items()):
        is_counted = spawned.status in ("finished", "truncated") and links[str(number)]["call"] != NO_CALL
        if is_counted and spawned.metadata.get(ROLE, POLICY) == POLICY:
            yield spawned
        yield from learning_sub_trajectories(spawned)


def _counted(groups: Sequence[PromptGroup]) -> list[Trajectory]:
    """The agents' episodes that count; verdicts of the policy as a judge are none."""
    answered = [group for group in groups if group.prompt.kind != CRITIC]
    return [group.trajectories[i] for group in answered for i in np.flatnonzero(group.counted_K)]
