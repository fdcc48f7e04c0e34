"""Plots of reinforcement learning: rewards and held-out accuracy, responses, agents, and how far the policy moves."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from k2jax.report.figures import curves
from k2jax.report.series import Records, scalars, thin
from k2jax.report.style import PALETTE, legend, new_figure, reference_line, step_ticks, style_axes


def accuracy_figure(records: Records) -> Figure | None:
    """Returns the training reward and, if recorded, held-out accuracies with their 95 % intervals."""
    reward = scalars(records, "reward")
    if reward is None:
        return None
    figure, grid = new_figure(1, height=3.6)
    _draw_accuracy(grid[0, 0], records, reward)
    grid[0, 0].set_xlabel("iteration")
    return figure


def _draw_accuracy(axes: Axes, records: Records, reward: tuple[np.ndarray, np.ndarray]) -> None:
    """Draws rewards and accuracies of all iterations."""
    axes.plot(*reward, color=PALETTE[3], linewidth=1.0, alpha=0.6, label="training reward, sampled")
    names = sorted({key for record in records for key in record if key.startswith("eval/") and key.count("/") == 1})
    shown = [name for name in names if name == "eval/greedy" or name.startswith(("eval/avg@", "eval/pass@"))]
    for name, color in zip(shown, (PALETTE[1], PALETTE[0], PALETTE[2]), strict=False):
        steps, values = scalars(records, name)
        low, high = scalars(records, f"{name}/low"), scalars(records, f"{name}/high")
        axes.plot(steps, values, color=color, marker="o", label=f"held-out {name.removeprefix('eval/')}")
        if low is not None and high is not None:
            axes.fill_between(steps, low[1], high[1], color=color, alpha=0.15, linewidth=0)
    style_axes(axes, title="Reward and accuracy", y="share of right responses")
    axes.set_ylim(min(0.0, float(np.nanmin(reward[1]))), max(1.02, 1.02 * float(np.nanmax(reward[1]))))
    step_ticks(axes)
    legend(axes)


def swarm_figure(records: Records) -> Figure | None:
    """Returns accuracy above parallelism over the iterations (Kimi K2.5, figure 4), and what sub-agents did.

    Parallelism is total steps over critical steps; 1 is an agent that works alone or waits for each sub-agent. Where
    the terms of ``rl.parl`` are parts of the reward, the accuracy of training is the reward without them.
    """
    reward, parallelism = scalars(records, "reward"), scalars(records, "swarm/parallelism")
    if reward is None or parallelism is None:
        return None
    recorded = {
        name: curves
        for name, keys in _SWARM_PANELS.items()
        if (curves := {key: curve for key in keys if (curve := scalars(records, f"swarm/{key}")) is not None})
    }
    figure, grid = new_figure(2 + len(recorded), height=2.4 * (2 + len(recorded)) + 0.9, sharex=True)
    _draw_accuracy(grid[0, 0], records, scalars(records, "swarm/score") or reward)
    _draw_parallelism(grid[1, 0], parallelism, scalars(records, "eval/swarm/parallelism"))
    for axes, ((title, unit), lines) in zip(grid[2:, 0], recorded.items(), strict=True):
        style_axes(axes, title=title, y=unit)
        for (key, curve), color in zip(lines.items(), PALETTE, strict=False):
            axes.plot(*thin(*curve), color=color, linewidth=1.5, label=key.replace("_", " "))
        axes.set_ylim(0, 1.08 * max(float(np.nanmax(values)) for _, values in lines.values()) or 1)
        legend(axes)
    for axes in grid[:, 0]:
        step_ticks(axes)
    grid[-1, 0].set_xlabel("iteration")
    return figure


_SWARM_PANELS = {  # title and unit: keys of metrics below ``swarm/``
    ("Steps of an episode", "steps"): ("total_steps", "critical_steps"),
    ("Sub-agents of an episode", "count"): ("created", "used", "assigned", "finished", "peak"),
    ("Terms of the reward, without their weights", "value"): ("parallel", "finish"),
    ("Weights of these terms", "weight"): ("parallel_weight", "finish_weight"),
}


def _draw_parallelism(
    axes: Axes, sampled: tuple[np.ndarray, np.ndarray], held_out: tuple[np.ndarray, np.ndarray] | None
) -> None:
    style_axes(axes, title="Parallelism", y="total / critical steps")
    axes.plot(*thin(*sampled), color=PALETTE[3], linewidth=1.0, alpha=0.6, label="training, sampled")
    if held_out is not None:
        axes.plot(*held_out, color=PALETTE[1], marker="o", label="held-out greedy")
    highest = max(float(np.nanmax(values)) for _, values in (sampled, held_out or sampled))
    axes.set_ylim(0, 1.08 * max(highest, 1.0))
    reference_line(axes, 1.0, "one step after another", left=True, under=True)
    legend(axes, loc="lower right")


def responses_figure(records: Records) -> Figure | None:
    """Returns the length of responses, the share that was cut, and the entropy of the policy."""
    panels = [
        ("length", "Response length", "tokens", PALETTE[0], True),
        ("truncated", "Responses cut at their budget", "share", PALETTE[4], True),
        ("tokens/entropy", "Entropy", "nats per token", PALETTE[2], True),
        ("rollout_tokens_per_second", "Rollout", "tokens/s", PALETTE[5], True),
    ]
    return curves(records, panels, whole=True)


def drift_figure(records: Records) -> Figure | None:
    """Returns how the trainer's log-probabilities differ from the engine's, and the policy from its old self."""
    panels = [
        ("tokens/mismatch", "Engine against trainer, mean", "abs difference [nats]", PALETTE[0], True),
        ("tokens/kl", "KL to the old policy", "nats per token", PALETTE[2], True),
        ("policy/clipped", "Outside the objective's trust region", "share of tokens or turns", PALETTE[4], True),
    ]
    return curves(records, panels)


def verdicts_figure(records: Records) -> Figure | None:
    """Returns how often a judge is right, contradicts itself in the other order, and prefers a place."""
    panels = [
        ("refinement/accuracy", "Sampled verdicts of the closed loop that are right", "share", PALETTE[0], True),
        ("eval/judge/both_right", "Held-out pairs judged right in both orders", "share", PALETTE[1], False),
        ("critic/ties", "Pairs without a winner", "share", PALETTE[4], True),
        ("critic/first", "Verdicts for the answer in the first place", "share", PALETTE[2], True),
    ]
    return curves(records, panels)
