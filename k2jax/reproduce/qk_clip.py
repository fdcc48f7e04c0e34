"""Sums up QK-Clip: the maximum logit per head over time with and without it."""

from __future__ import annotations

import numpy as np

from k2jax.report.style import PALETTE, legend, new_figure, reference_line, style_axes
from k2jax.report.table import markdown_table, significant
from k2jax.reproduce.study import RunResult, Summary, curve

TITLES = {"muon": "Muon without QK-Clip", "muonclip": "MuonClip"}


def summarize(results: dict[str, RunResult]) -> Summary:
    """S per head, the share of steps and heads above the threshold, and what it does to the loss."""
    config = next(iter(results.values())).config
    tau = config.optimizer.qk_clip_tau
    rows = []
    for name, result in results.items():
        steps, logits = _logits(result)
        above = logits > tau
        losses = curve(result, "val_loss")[1]
        rows.append(
            (
                TITLES[name],
                significant(float(logits.max())),
                significant(float(logits[len(steps) // 2 :].max())),
                f"{above.mean() * 100:.1f} %",
                significant(losses[-1], 4) if losses else "none",
                "finished" if result.exit_code == 0 else "stopped on a non-finite value",
            )
        )
    header = ("run", "highest S", "highest S, second half", "(head, step) pairs with S above τ", "held-out loss", "end")
    text = (
        f"Same seed, same batches, learning rate {config.optimizer.learning_rate:g} (raised) and τ = {tau:g} (lowered "
        f"from the report's 100), so that {config.train.steps} steps show it. S is the maximum logit of a head in a "
        "step, before that step's clip: with the clip it exceeds τ by what one step adds.\n\n"
        + markdown_table(header, rows)
    )
    return Summary(text, _figure(results, tau))


def _logits(result: RunResult) -> tuple[list[int], np.ndarray]:
    """Steps and S as ``[steps, layers * heads]``."""
    steps, values = curve(result, "max_logit_heads")
    return steps, np.array(values, float).reshape(len(steps), -1)


def _figure(results: dict[str, RunResult], tau: float):
    figure, axes = new_figure(1, len(results), height=3.8, sharey=True)
    for panel, (name, result) in zip(axes[0], results.items(), strict=True):
        steps, values = curve(result, "max_logit_heads")
        for layer in range(result.config.model.layers):
            for head in range(result.config.model.heads):
                series = [value[layer][head] for value in values]
                label = f"layer {layer}" if head == 0 else None
                panel.plot(steps, series, color=PALETTE[layer % len(PALETTE)], linewidth=1.0, alpha=0.8, label=label)
        panel.set_yscale("log")
        reference_line(panel, tau, f"τ = {tau:g}", left=True)
        style_axes(panel, title=TITLES[name], x="step", y="maximum logit S per head" if panel is axes[0, 0] else "")
    legend(axes[0, 0])
    return figure
