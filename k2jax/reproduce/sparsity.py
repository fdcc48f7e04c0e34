"""Sums up sparsity: final held-out loss against the number of experts at fixed activated parameters."""

from __future__ import annotations

import numpy as np

from k2jax.model import active_parameters, total_parameters
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table, quantity
from k2jax.reproduce.study import RunResult, Summary, final, spread


def summarize(results: dict[str, RunResult]) -> Summary:
    """Mean and range over seeds for each number of experts and token budget, and which way each budget falls."""
    losses: dict[int, dict[int, list[float]]] = {}
    configs = {}
    for result in results.values():
        config = result.config
        by_experts = losses.setdefault(config.train.steps, {})
        by_experts.setdefault(config.model.experts, []).append(final(result, "val_loss"))
        configs[config.model.experts] = config
    budgets = sorted(losses)
    rows = [
        (
            experts,
            f"{experts // config.model.active_experts}",
            quantity(total_parameters(config.model)),
            quantity(active_parameters(config.model)),
            *(spread(losses[steps][experts]) for steps in budgets),
        )
        for experts, config in sorted(configs.items())
    ]
    per_step = {c.train.batch_size * c.data.sequence_length for c in configs.values()}.pop()
    names = [f"{quantity(steps * per_step)} tokens" for steps in budgets]
    header = ("experts", "sparsity", "parameters", "active", *(f"held-out loss, {name}" for name in names))
    verdicts = [_verdict(name, losses[steps]) for name, steps in zip(names, budgets, strict=True)]
    text = (
        "Four active experts, everything else equal; mean (lowest to highest) over seeds [nats per token].\n\n"
        f"{markdown_table(header, rows)}\n" + " ".join(verdicts) + "\n"
    )
    return Summary(text, _figure(losses, names))


def _verdict(name: str, by_experts: dict[int, list[float]]) -> str:
    """One sentence: difference between the most and the fewest experts, beside the spread over seeds."""
    fewest, most = min(by_experts), max(by_experts)
    change = float(np.mean(by_experts[most]) - np.mean(by_experts[fewest]))
    noise = max(max(values) - min(values) for values in by_experts.values())
    way = "lower" if change < 0 else "higher"
    clear = "more" if abs(change) > noise else "not more"
    return (
        f"At {name}, {most} experts end {abs(change):.3f} {way} than {fewest}, {clear} than the widest range over "
        f"seeds ({noise:.3f})."
    )


def _figure(losses: dict[int, dict[int, list[float]]], names: list[str]):
    figure, axes = new_figure(1, 1, width=6.5, height=4.0)
    panel = axes[0, 0]
    for (_, by_experts), name, color in zip(sorted(losses.items()), names, PALETTE, strict=False):
        experts = sorted(by_experts)
        panel.plot(experts, [np.mean(by_experts[e]) for e in experts], marker="o", color=color, label=name)
        for e in experts:
            panel.plot([e] * len(by_experts[e]), by_experts[e], ".", color=color, alpha=0.5)
    panel.set_xscale("log", base=2)
    style_axes(panel, title="Loss and sparsity", x="experts, 4 of them active", y="held-out loss [nats per token]")
    panel.set_xticks(experts, [str(e) for e in experts])
    legend(panel)
    return figure
