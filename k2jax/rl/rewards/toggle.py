"""Toggle: phases of iterations that count a right response only within a budget of tokens (Kimi K2.5, section 4.4).

In phase 0 a response to a prompt that the policy mostly solves has to be as short as the right ones of the initial
policy were, or its reward is taken; in phase 1 all rewards count as they are. Trajectories keep the verifier's reward:
only what advantages are made of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from k2jax.agents.mixture import CRITIC, DrawnTask, TaskMixture, class_config
from k2jax.config.schema import Config
from k2jax.errors import UserError
from k2jax.rl.rewards.budgets import sample_budgets
from k2jax.rl.rewards.group_rewards import group_rewards
from k2jax.rl.rollouts import PromptGroup, Rollouts
from k2jax.trajectory import Trajectory


def toggle_phase(iteration: int, period: int) -> int:
    """The phase of an iteration from 0: ``period`` iterations of phase 0, as many of phase 1, and so on.

    Without a period, which turns Toggle off, every iteration is of phase 1.
    """
    return iteration // period % 2 if period else 1


def toggled_rewards(
    rewards_K: np.ndarray, raw_K: np.ndarray, lengths_K: np.ndarray, budget: float, accuracy: float
) -> tuple[np.ndarray, np.ndarray]:
    """The rewards of phase 0: r 1[mean r < accuracy or length <= budget].

    Args:
        rewards_K: float64 ``[K]``, the raw rewards less penalties, which stay.
        raw_K: float64 ``[K]``, rewards of the verifier.
        lengths_K: int ``[K]``, sampled tokens of each response, over all of its turns.
        budget: of the prompt [tokens].
        accuracy: mean raw reward from which on the budget holds (the report's lambda).

    Returns:
        Float64 ``[K]``, and bool ``[K]``: which rewards were taken, those of 0 apart.
    """
    if not len(raw_K) or raw_K.mean() < accuracy:
        return rewards_K, np.zeros(len(raw_K), bool)
    over_K = lengths_K > budget
    return np.where(over_K, rewards_K - raw_K, rewards_K), over_K & (raw_K != 0)


class Toggle:
    """The rewards of a run's groups under ``config.rl.toggle``; where that is off, they are the verifiers'.

    Args:
        config: the experiment.
        mixture: its prompts.

    Raises:
        UserError: the prompts are so many that the run does not come back to them.
    """

    def __init__(self, config: Config, mixture: TaskMixture):
        self._config = config
        self._prompts = list(mixture.training_prompts()) if config.rl.toggle.period else []
        self._budgets: dict[tuple[str, str], float] = {}
        drawn = config.train.steps * config.rl.rollout.prompts
        if len(self._prompts) > drawn:
            raise UserError(
                f"config.rl.toggle samples every prompt beforehand, and of {len(self._prompts):,} tasks in "
                f"config.rl.tasks the run draws {drawn:,}: lower their number, or raise config.train.steps"
            )

    async def sample(self, rollouts: Rollouts, note: Callable[[str], None]) -> None:
        """Samples the budget of every prompt from the initial policy; nothing where Toggle is off.

        Args:
            rollouts: of the run, before its first step.
            note: prints a line.
        """
        if not self._prompts:
            return
        toggle = self._config.rl.toggle
        note(f"sampling {toggle.samples} responses to each of {len(self._prompts):,} prompts for their budgets")
        budgets = await sample_budgets(self._config, self._prompts, rollouts, note)
        self._set(budgets)
        known = budgets[np.isfinite(budgets)]
        median = f", {np.median(known):,.0f} tokens in the median" if len(known) else ""
        note(f"{len(known):,} of {len(budgets):,} prompts have a budget{median}")

    def rewards(self, step: int, group: PromptGroup) -> tuple[np.ndarray, np.ndarray]:
        """The rewards that a step's advantages are made of, and which samples count; see ``group_rewards``."""
        rewards_K, counted_K = group_rewards(group.trajectories, class_config(self._config.rl, group.prompt.kind))
        rewards_K[counted_K] = self._toggled(step, group, rewards_K[counted_K])[0]
        return rewards_K, counted_K

    def record(self, step: int, groups: Sequence[PromptGroup]) -> dict[str, float]:
        """Metrics of a step: its phase, and the share of responses whose reward was taken."""
        if not self._prompts:
            return {}
        taken = []
        for group in groups:
            scored = _scored(group)
            taken += list(self._toggled(step, group, np.zeros(len(scored)))[1])
        phase = toggle_phase(step - 1, self._config.rl.toggle.period)
        return {"toggle/phase": phase, "toggle/taken": float(np.mean(taken)) if taken else 0.0}

    def extra(self) -> dict[str, Any]:
        """What a checkpoint keeps: budgets float64 in the order of the prompts."""
        if not self._prompts:
            return {}
        return {"budgets": np.array([self._budgets[_name(prompt)] for prompt in self._prompts])}

    def restore(self, extra: dict[str, Any]) -> None:
        """Goes on with the budgets of ``extra``.

        Raises:
            UserError: the checkpoint has none.
        """
        if not self._prompts:
            return
        if "budgets" not in extra:
            raise UserError(
                "the checkpoint holds no budgets for config.rl.toggle, which come of the initial policy; set "
                "config.rl.toggle.period back to 0, or use a new --workdir"
            )
        self._set(extra["budgets"])

    def _set(self, budgets: np.ndarray) -> None:
        pairs = zip(self._prompts, budgets, strict=True)
        self._budgets = {_name(prompt): float(budget) for prompt, budget in pairs}

    def _toggled(self, step: int, group: PromptGroup, rewards_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``toggled_rewards`` of the samples that count, in the step's phase."""
        toggle, scored = self._config.rl.toggle, _scored(group)
        if toggle_phase(step - 1, toggle.period) == 1:
            return rewards_K, np.zeros(len(scored), bool)
        budget = np.inf if group.prompt.kind == CRITIC else self._budgets[_name(group.prompt)]
        raw_K = np.array([trajectory.reward.value for trajectory in scored], float)
        lengths_K = np.array([trajectory.sampled_tokens for trajectory in scored], int)
        return toggled_rewards(rewards_K, raw_K, lengths_K, budget, toggle.accuracy)


def _scored(group: PromptGroup) -> list[Trajectory]:
    return [trajectory for trajectory in group.trajectories if trajectory.status != "masked"]


def _name(prompt: DrawnTask) -> tuple[str, str]:
    return prompt.kind, prompt.task.id
