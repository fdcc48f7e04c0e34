"""How long right responses of the initial policy are, prompt by prompt: the budgets that Toggle holds responses to.

The table is a function of the initial weights. A run that is killed before its first checkpoint samples it again, with
the same random numbers in the same programs, and reads the verdicts back from their log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import time

import numpy as np

from k2jax.agents.mixture import DrawnTask
from k2jax.config.schema import Config
from k2jax.rl.rollouts import PromptGroup, Rollouts

KEY = -(1 << 31)
"""In the place of a step in the keys of the table's trajectories; no iteration and no evaluation has it."""
_FIRST_ITERATION = 1
_SECONDS = 10.0  # between two lines of progress


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
    config: Config, prompts: Sequence[DrawnTask], rollouts: Rollouts, note: Callable[[str], None]
) -> np.ndarray:
    """Samples responses of the engine's weights to every prompt, at the temperature of the first iteration.

    As many prompts as an iteration has are in flight at a time; of their responses only the lengths stay in memory. A
    response that the infrastructure has masked does not count.

    Args:
        config: the experiment; ``rl.toggle`` says how many responses, and which percentile.
        prompts: each once.
        rollouts: of the run.
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
            PromptGroup(-1, (KEY, number), prompts[number], [None] * toggle.samples)
            for number in range(start, min(start + at_a_time, len(prompts)))
        ]
        await rollouts.run(_FIRST_ITERATION, groups)
        for number, group in enumerate(groups, start):
            scored = [trajectory for trajectory in group.trajectories if trajectory.reward is not None]
            lengths_K = np.array([trajectory.sampled_tokens for trajectory in scored], int)
            right_K = np.array([trajectory.reward.value >= config.rl.correct_reward for trajectory in scored], bool)
            budgets[number] = length_budget(lengths_K, right_K, toggle.percentile)
    return budgets
