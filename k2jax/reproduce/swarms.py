"""What the study of the swarm measures: accuracy, steps and sub-agents of episodes, and the steps that an F1 takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
import numpy as np

from k2jax.config import resolve
from k2jax.report.table import markdown_table
from k2jax.reproduce.seeds import SeedRecords
from k2jax.trajectory import Trajectory
from k2jax.trajectory.swarm import swarm_record

WAYS = ("greedy", "sampled")


def measured_episodes(config: ConfigDict, checkpoint: Path) -> dict[str, float]:
    """Metrics of a checkpoint's answers to the held-out tasks of a configuration, by way and by domain.

    Args:
        config: with one sampled answer of each task beside the greedy one.
        checkpoint: whose weights answer as the policy.
    """
    from k2jax.rl.evaluation import evaluate_checkpoint

    _, groups = evaluate_checkpoint(resolve(config), str(checkpoint))
    record = {}
    for sample, way in enumerate(WAYS):
        scored = [group.trajectories[sample] for group in groups if group.trajectories[sample].reward is not None]
        of_kinds = {"": scored} | {f"{kind}/": [] for kind in sorted({each.domain for each in scored})}
        for each in scored:
            of_kinds[f"{each.domain}/"].append(each)
        for kind, episodes in of_kinds.items():
            record |= {f"{way}/{kind}{key}": value for key, value in episode_means(episodes).items()}
    return record


def episode_means(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Means of scored episodes: ``items`` is the reward, ``parallelism`` the ratio of all total to all critical steps.

    ``finished`` is the share of assigned tasks, and left out where none was assigned.
    """
    swarms = [swarm_record(each) for each in episodes]
    total, critical = (sum(getattr(each, name) for each in swarms) for name in ("total_steps", "critical_steps"))
    record = {
        name: float(np.mean([getattr(each, name) for each in swarms])) for name in ("created", "used", "assigned")
    }
    assigned = sum(each.assigned for each in swarms)
    record |= {"finished": sum(each.finished for each in swarms) / assigned} if assigned else {}
    rewards = [each.reward for each in episodes]
    return record | {
        "items": float(np.mean([each.value for each in rewards])),
        "item_f1": float(np.mean([each.parts.get("item_f1", 0.0) for each in rewards])),
        "exact": float(np.mean([each.parts.get("exact", 0.0) for each in rewards])),
        "critical_steps": critical / len(swarms),
        "total_steps": total / len(swarms),
        "parallelism": total / critical,
        "truncated": float(np.mean([each.status == "truncated" for each in episodes])),
    }


def budget_key(budget: int) -> str:
    """Where a record keeps the Item-F1 at a budget of critical steps."""
    return f"budget{budget}"


def steps_to_reach(record: Mapping[str, Any], budgets: Sequence[int], threshold: float) -> float | None:
    """Critical steps that an Item-F1 takes (figure 8 of Kimi K2.5), between two budgets linearly; None for never.

    Args:
        record: the Item-F1 of each budget.
        budgets: ascending; without any step it is 0.
        threshold: above 0.
    """
    before, f1_before = 0, 0.0
    for budget in budgets:
        f1 = record[budget_key(budget)]
        if f1 >= threshold:
            return before + (budget - before) * (threshold - f1_before) / (f1 - f1_before)
        before, f1_before = budget, f1
    return None


def steps_spread(steps: Sequence[float | None]) -> str:
    """Mean and range over seeds of what ``steps_to_reach`` returned, and how many never reach it."""
    reached = [each for each in steps if each is not None]
    if not reached:
        return "never"
    missing = f", {len(steps) - len(reached)} never" if len(reached) < len(steps) else ""
    return f"{np.mean(reached):.1f} ({min(reached):.1f} to {max(reached):.1f}{missing})"


def needed_table(
    measured: SeedRecords, labels: Mapping[str, str], budgets: Sequence[int], thresholds: Sequence[float]
) -> str:
    """The critical steps that runs take to reach each Item-F1, as a heading and a Markdown table."""
    rows = []
    for run, label in labels.items():
        steps = [[steps_to_reach(record, budgets, each) for record in measured.runs[run]] for each in thresholds]
        rows.append((label, *map(steps_spread, steps)))
    header = ("run", *(f"Item-F1 {each}" for each in thresholds))
    return f"\nCritical steps to reach an Item-F1 on the widest questions:\n\n{markdown_table(header, rows)}\n"
