"""Toggle: phases of iterations that count a right response only within a budget of tokens (Kimi K2.5, section 4.4).

In phase 0 a response to a prompt that the policy mostly solves has to be as short as the right ones of the initial
policy were, or its reward is taken; in phase 1 all rewards count as they are. Trajectories keep the verifier's reward:
only what advantages are made of changes.

The table of budgets is a function of the initial weights. A run that is killed before its first checkpoint samples it
again, with the same random numbers in the same programs, and reads the verdicts back from their log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import time
from typing import Any

import numpy as np

from k2jax.agents.mixture import CRITIC, DrawnTask, TaskMixture
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.rl.episodes import Episodes
from k2jax.rl.groups import PromptGroup, RewardTerm
from k2jax.rl.methods.base import Method, Methods, Parts
from k2jax.rl.sampler import Sampler
from k2jax.train.run import Run
from k2jax.trajectory import Trajectory

NAME = "toggle"
"""Of the term."""
_FIRST_ITERATION = 1
_SECONDS = 10.0  # between two lines of progress


def toggle_phase(iteration: int, period: int) -> int:
    """The phase of an iteration from 0: ``period`` iterations of phase 0, as many of phase 1, and so on.

    Without a period, which turns Toggle off, every iteration is of phase 1.
    """
    return iteration // period % 2 if period else 1


def rewards_taken(raw_K: np.ndarray, lengths_K: np.ndarray, budget: float, accuracy: float) -> np.ndarray:
    """What phase 0 takes of the raw rewards r, so that r 1[mean r < accuracy or length <= budget] stays.

    Args:
        raw_K: float64 ``[K]``, rewards of the verifier.
        lengths_K: int ``[K]``, sampled tokens of each response, over all of its turns.
        budget: of the prompt [tokens].
        accuracy: mean raw reward from which on the budget holds (the report's lambda).

    Returns:
        Float64 ``[K]``.
    """
    if not len(raw_K) or raw_K.mean() < accuracy:
        return np.zeros(len(raw_K))
    return np.where(lengths_K > budget, raw_K, 0.0)


def length_budget(lengths_K: np.ndarray, right_K: np.ndarray, percentile: float) -> float:
    """The budget of a prompt: a percentile of the lengths of its right responses (Kimi K2.5, section 4.4, equation 2).

    Between two lengths it is interpolated linearly.

    Args:
        lengths_K: int ``[K]``, sampled tokens of each response, over all of its turns.
        right_K: bool ``[K]``, which of them are right.
        percentile: from 0 to 100.

    Returns:
        The budget [tokens]; infinity where no response is right.
    """
    return float(np.percentile(lengths_K[right_K], percentile)) if right_K.any() else np.inf


async def sample_budgets(
    config: Config, prompts: Sequence[DrawnTask], episodes: Episodes, note: Callable[[str], None]
) -> np.ndarray:
    """Samples responses of the engine's weights to every prompt, at the temperature of the first iteration.

    As many prompts as an iteration has are in flight at a time; of their responses only the lengths stay in memory. A
    response that the infrastructure has masked does not count.

    Args:
        config: the experiment; ``rl.toggle`` says how many responses, and which percentile.
        prompts: each once.
        episodes: runs those of the engine.
        note: prints a line of progress.

    Returns:
        Budgets float64 ``[prompts]`` [tokens].
    """
    toggle, at_a_time, spoke_at = config.rl.toggle, config.rl.rollout.prompts, time.monotonic()
    budgets = np.full(len(prompts), np.inf)
    for start in range(0, len(prompts), at_a_time):
        if time.monotonic() - spoke_at >= _SECONDS:
            note(f"budgets of {start:,} of {len(prompts):,} prompts are sampled")
            spoke_at = time.monotonic()
        groups = [
            PromptGroup(-1, (0, number), prompts[number], [None] * toggle.samples, purpose="budget")
            for number in range(start, min(start + at_a_time, len(prompts)))
        ]
        await episodes.run(_FIRST_ITERATION, groups)
        for number, group in enumerate(groups, start):
            scored = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
            lengths_K = np.array([trajectory.sampled_tokens for trajectory in scored], int)
            right_K = np.array([trajectory.reward.value >= config.rl.correct_reward for trajectory in scored], bool)
            budgets[number] = length_budget(lengths_K, right_K, toggle.percentile)
    return budgets


class Toggle(Method):
    """A term ``toggle`` of the rewards, which is what a phase takes of them.

    Args:
        config: the experiment.
        mixture: its prompts.

    Raises:
        UserError: the prompts are so many that the run does not come back to them.
    """

    def __init__(self, config: Config, mixture: TaskMixture):
        self._config = config
        self._prompts = list(mixture.training_prompts())
        self._budgets: dict[tuple[str, str], float] = {}
        drawn = config.train.steps * config.rl.rollout.prompts
        if len(self._prompts) > drawn:
            raise UserError(
                f"config.rl.toggle samples every prompt beforehand, and of {len(self._prompts):,} tasks in "
                f"config.rl.tasks the run draws {drawn:,}: lower their number, or raise config.train.steps"
            )

    @staticmethod
    def used(config: Config) -> bool:
        """Whether Toggle has a period."""
        return bool(config.rl.toggle.period)

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> Toggle:
        """See ``Method``."""
        return cls(parts.config, parts.mixture)

    def begin(self, run: Run, sampler: Sampler) -> None:
        """Samples the budget of every prompt from the initial policy, unless a checkpoint had them."""
        if self._budgets:
            return
        toggle = self._config.rl.toggle
        run.note(f"sampling {toggle.samples} responses to each of {len(self._prompts):,} prompts for their budgets")
        budgets = sampler.run(sample_budgets(self._config, self._prompts, sampler.episodes, run.note))
        self._set(budgets)
        finite = budgets[np.isfinite(budgets)]
        median = f", {np.median(finite):,.0f} tokens in the median" if len(finite) else ""
        run.note(f"{len(finite):,} of {len(budgets):,} prompts have a budget{median}")

    async def rewards(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Adds the term, 0 in phase 1."""
        for group in groups:
            counted_K = group.counted_K
            taken_K = np.zeros(len(counted_K))
            if toggle_phase(step - 1, self._config.rl.toggle.period) == 0:
                taken_K[counted_K] = self._taken([group.trajectories[i] for i in np.flatnonzero(counted_K)], group)
            group.terms.append(RewardTerm(NAME, taken_K, -1.0))

    def record(self, step: int, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics of a step: its phase, and the share of responses whose reward, not 0, was taken."""
        terms = [(group.counted_K, term) for group in groups for term in group.terms if term.name == NAME]
        taken = [bool(value) for counted_K, term in terms for value in term.values_K[counted_K]]
        phase = toggle_phase(step - 1, self._config.rl.toggle.period)
        return {"toggle/phase": phase, "toggle/taken": float(np.mean(taken)) if taken else 0.0}

    def extra(self) -> dict[str, Any]:
        """Budgets float64 in the order of the prompts."""
        return {"budgets": np.array([self._budgets[_name(prompt)] for prompt in self._prompts])}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continues with the budgets of ``extra``.

        Raises:
            UserError: the checkpoint has none.
        """
        if "budgets" not in extra:
            raise UserError(
                "the checkpoint holds no budgets for config.rl.toggle, which come of the initial policy; set "
                "config.rl.toggle.period back to 0, or use a new --workdir"
            )
        self._set(extra["budgets"])

    def _set(self, budgets: np.ndarray) -> None:
        pairs = zip(self._prompts, budgets, strict=True)
        self._budgets = {_name(prompt): float(budget) for prompt, budget in pairs}

    def _taken(self, scored: Sequence[Trajectory], group: PromptGroup) -> np.ndarray:
        budget = np.inf if group.prompt.kind == CRITIC else self._budgets[_name(group.prompt)]
        raw_K = np.array([trajectory.reward.value for trajectory in scored], float)
        lengths_K = np.array([trajectory.sampled_tokens for trajectory in scored], int)
        return rewards_taken(raw_K, lengths_K, budget, self._config.rl.toggle.accuracy)


def _name(prompt: DrawnTask) -> tuple[str, str]:
    return prompt.kind, prompt.task.id
