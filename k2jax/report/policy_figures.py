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
    """Returns accuracy above parallelism over the iterations (Kimi K2.5, figure 4), and the steps that it is made of.

    Parallelism is total steps over critical steps; 1 is an agent that works alone or waits for each sub-agent.
    """
    reward, parallelism = scalars(records, "reward"), scalars(records, "swarm/parallelism")
    if reward is None or parallelism is None:
        return None
    panels = {
        ("Steps of an episode", "steps"): ("swarm/total_steps", "swarm/critical_steps"),
        ("Sub-agents of an episode", "sub-agents"): ("swarm/agents_created", "swarm/agents_used", "swarm/peak"),
        ("Assignments of an episode", "assignments"): ("swarm/assigned", "swarm/finished"),
    }
    lines = {key: scalars(records, key) for keys in panels.values() for key in keys}
    recorded = {name: keys for name, keys in panels.items() if any(lines[key] is not None for key in keys)}
    figure, grid = new_figure(2 + len(recorded), height=2.4 * (2 + len(recorded)) + 0.9, sharex=True)
    _draw_accuracy(grid[0, 0], records, reward)
    axes = style_axes(grid[1, 0], title="Parallelism", y="total / critical steps")
    axes.plot(*thin(*parallelism), color=PALETTE[0], linewidth=1.7)
    axes.set_ylim(0, 1.08 * float(np.nanmax(parallelism[1])))
    reference_line(axes, 1.0, "one step after another", left=True, under=True)
    for axes, ((title, unit), keys) in zip(grid[2:, 0], recorded.items(), strict=True):
        style_axes(axes, title=title, y=unit)
        for key, color in zip(keys, PALETTE, strict=False):
            if lines[key] is not None:
                label = key.removeprefix("swarm/").replace("_", " ")
                axes.plot(*thin(*lines[key]), color=color, linewidth=1.5, label=label)
        axes.set_ylim(bottom=0)
        legend(axes)
    for axes in grid[:, 0]:
        step_ticks(axes)
    grid[-1, 0].set_xlabel("iteration")
    return figure


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
