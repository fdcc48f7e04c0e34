"""Groups of responses to one prompt: their rewards as a sum of named terms, and the samples that are trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.judges.verdict_metrics import JudgedPair
from k2jax.agents.mixture import DrawnTask, class_config
from k2jax.config.schema import RLConfig, TaskConfig
from k2jax.errors import UserError
from k2jax.rl.advantages import group_advantages
from k2jax.rl.packing.training_paths import TrainingSample
from k2jax.trajectory import Trajectory
from k2jax.trajectory.annotations import RewardPart, set_reward_parts
from k2jax.trajectory.steps import POLICY, ROLE
from k2jax.trajectory.types import Purpose

Further = Callable[["PromptGroup", np.ndarray], Sequence[TrainingSample]]
"""Makes further samples of a group; the array is ``[K]``, the advantages of its responses."""
OWN_TERMS = ("verifier", "judge", "overlong")
"""Names of the terms that a class of tasks has by its configuration."""


class RewardTerm(NamedTuple):
    """A part of the rewards of a group.

    Attributes:
        name: ``verifier``, ``judge``, ``overlong``, or what a method calls its own.
        values_K: float64 ``[K]`` of the K responses; 0 for masked ones.
        weight: times which it counts.
    """

    name: str
    values_K: np.ndarray
    weight: float = 1.0


@dataclasses.dataclass(eq=False)
class PromptGroup:
    """The responses to one prompt.

    Attributes:
        number: of the prompt in the run; -1 of one that is not of the mixture's sequence.
        key: (step in which it began, place among that step's prompts).
        prompt: class and task.
        trajectories: one for each sample; None before it began.
        purpose: what its episodes are for.
        judged: what a critic said of pairs of them.
        wins: the judge's reward of each sample, in a class of tasks whose rewards it is a term of.
        terms: of the rewards, in the order in which they are added up; set when the group goes to the trainer.
    """

    number: int
    key: tuple[int, int]
    prompt: DrawnTask
    trajectories: list[Trajectory | None]
    _: dataclasses.KW_ONLY
    purpose: Purpose = "train"
    judged: list[JudgedPair] = dataclasses.field(default_factory=list)
    wins: dict[int, float] = dataclasses.field(default_factory=dict)
    terms: list[RewardTerm] = dataclasses.field(default_factory=list)

    def episode(self, sample: int) -> EpisodeKey:
        """The key of a sample's episode."""
        return EpisodeKey(self.purpose, *self.key, sample)

    @property
    def complete(self) -> bool:
        """Whether no response continues in a later iteration."""
        return all(trajectory is not None and trajectory.status != "unfinished" for trajectory in self.trajectories)

    @property
    def counted_K(self) -> np.ndarray:
        """Bool ``[K]``, False for samples that a failure of the infrastructure has masked."""
        return np.array([trajectory.status != "masked" for trajectory in self.trajectories], bool)


def total_reward(terms: Sequence[RewardTerm]) -> np.ndarray:
    """The weighted sum of terms, float64 ``[K]``."""
    total_K = np.zeros(len(terms[0].values_K))
    for term in terms:
        total_K += term.weight * term.values_K
    return total_K


def reward_terms(group: PromptGroup, task: TaskConfig, weights: Mapping[str, float]) -> list[RewardTerm]:
    """The rewards of the verifier and of the judge, and the penalty where a budget has cut the response.

    Budget control of Kimi K2 (section 3.2.3): a response that reaches ``max_tokens`` is truncated, penalised, and stays
    in the loss. Advantages of a group therefore hold the cost of its length.

    Args:
        group: complete and scored.
        task: the class of tasks, which has the verifier, the judge or both.
        weights: of the terms, see ``schedules.reward_weights``.

    Raises:
        ValueError: a trajectory that is not masked is not finished, or nobody has scored it.
    """
    verdict_K, win_K, cut_K = np.zeros((3, len(group.trajectories)))
    for sample in np.flatnonzero(group.counted_K):
        trajectory = group.trajectories[sample]
        if trajectory.status not in ("finished", "truncated") or trajectory.reward is None:
            raise ValueError(f"trajectory {trajectory.key} is {trajectory.status} and has no reward to train on")
        if task.is_judged:
            win_K[sample] = group.wins[sample]
        verdict_K[sample] = trajectory.reward.value
        cut_K[sample] = trajectory.status == "truncated"
    terms = [RewardTerm("verifier", verdict_K, weights["verifier"])] if task.is_verified else []
    terms += [RewardTerm("judge", win_K, weights["judge"])] if task.is_judged else []
    return [*terms, RewardTerm("overlong", -cut_K, weights["overlong"])]


def note_terms(group: PromptGroup) -> None:
    """Writes the terms of rewards that are sums into the trajectories, for their store and its pages."""
    used = [term for term in group.terms if term.weight and (term.name in OWN_TERMS or term.values_K.any())]
    if len(used) > 1:
        for sample in np.flatnonzero(group.counted_K):
            parts = [RewardPart(term.name, float(term.values_K[sample]), float(term.weight)) for term in used]
            set_reward_parts(group.trajectories[sample], parts)


def training_samples(
    rl: RLConfig, groups: Sequence[PromptGroup], further: Further = lambda group, advantages_K: ()
) -> tuple[list[list[TrainingSample]], int]:
    """What is trained on of each group, and the number of groups whose advantages are all 0.

    Args:
        rl: settings; with ``skip_flat_groups`` such groups are left out.
        groups: complete ones, with the terms of their rewards. One that is not finite or too large is a UserError.
        further: what methods add to a group, see ``Method.samples``.
    """
    samples, flat = [], 0
    numbers = {name: number for number, name in enumerate(sorted(rl.tasks))}
    for group in groups:
        counted_K = group.counted_K
        try:
            advantages = group_advantages(total_reward(group.terms)[None], counted_K[None], rl.advantage)[0]
        except ValueError as error:
            terms = ", ".join(f"{term.name} {np.abs(term.weight * term.values_K).max():g}" for term in group.terms)
            task = f"the task {group.prompt.task.id!r} of class {group.prompt.kind!r}"
            raise UserError(f"{task} has {error}; its largest terms: {terms}") from error
        more = further(group, advantages)
        has_signal = advantages.any() or any(sample.advantage for sample in more)
        flat += not has_signal
        for trajectory in group.trajectories:
            if (role := trajectory.metadata.get(ROLE, POLICY)) != POLICY:
                raise ValueError(f"the role {role!r} has sampled the trajectory {trajectory.key}, not the policy")
        if has_signal or not rl.skip_flat_groups:
            kept = advantages if rl.distill.rewards else np.zeros_like(advantages)
            domain = numbers.get(group.prompt.kind, len(numbers))  # verdicts of the policy are a class of their own
            chosen = np.flatnonzero(counted_K)
            own = [TrainingSample(group.trajectories[i], float(kept[i]), domain) for i in chosen]
            samples.append([*own, *(sample._replace(domain=domain) for sample in more)])
    return samples, flat


def class_of(rl: RLConfig, group: PromptGroup) -> TaskConfig:
    """How a group's class of tasks is sampled and rewarded."""
    return class_config(rl, group.prompt.kind)
