"""The figures of a run: functions from metrics records to a matplotlib Figure, or to None if data are missing."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
import numpy as np

from k2jax.report.series import Records, arrays, scalars, smooth, thin
from k2jax.report.style import (
    ALERT,
    HALO,
    INK,
    PALETTE,
    color_bar,
    heat_map,
    legend,
    new_figure,
    reference_line,
    step_ticks,
    style_axes,
)
from k2jax.report.summary import NO_BASELINES, Baselines

SMALL_MULTIPLES = 12  # most layers for which max_logit has a panel per layer
PEAK = 2.0  # a curve's highest value over its 99.5th percentile, up to which an axis shows it
LOAD_PANELS = 6  # most MoE layers for which expert_load has a panel per layer
LOAD_COLORS = TwoSlopeNorm(1.0, 0.0, 3.0)  # load relative to the mean: white is balanced


def loss_figure(records: Records, baselines: Baselines = NO_BASELINES) -> Figure | None:
    """Returns training loss (raw and smoothed) with validation loss, and held-out bits per byte with its baselines.

    Where rewards are recorded the loss is a policy's objective.
    """
    loss, val_loss = scalars(records, "loss"), scalars(records, "val_loss")
    bits = scalars(records, "val_bits_per_byte")
    panels = [_draw_loss] * (loss is not None or val_loss is not None) + [_draw_bits] * (bits is not None)
    if not panels:
        return None
    figure, grid = new_figure(1, len(panels), width=5.6 * len(panels), height=4.0)
    for axes, draw in zip(grid[0], panels, strict=True):
        draw(axes, loss, val_loss, bits, baselines)
        step_ticks(axes)
    if scalars(records, "reward") is not None:
        style_axes(grid[0, 0], title="Objective", x="iteration", y="policy loss")
    return figure


def _draw_loss(axes: Axes, loss, val_loss, bits, baselines: Baselines) -> None:
    style_axes(axes, title="Loss", x="step", y="cross-entropy [nats per token]")
    if loss is not None:
        steps, values = loss
        smoothed = _raw_and_smooth(axes, steps, values, PALETTE[0], "training")
        # A spike of a few steps may exceed the axis, so that it does not flatten the curve.
        top = max(np.nanmax(smoothed), np.nanquantile(values, 0.995, method="lower"))
        bottom = min(np.nanquantile(values, 0.005, method="higher"), np.nanmin(smoothed))
        if val_loss is not None:
            top, bottom = max(top, np.nanmax(val_loss[1])), min(bottom, np.nanmin(val_loss[1]))
        margin = 0.04 * (top - bottom) or 0.1
        axes.set_ylim(bottom - margin, top + margin)
    if val_loss is not None:
        axes.plot(*val_loss, color=PALETTE[1], linewidth=1.6, marker="o", markersize=4, label="held out")
    legend(axes, loc="upper right")


def _draw_bits(axes: Axes, loss, val_loss, bits, baselines: Baselines) -> None:
    steps, values = bits
    last = f", {values[-1]:.3f} at the end" if np.isfinite(values[-1]) else ""
    style_axes(axes, title=f"Held-out text{last}", x="step", y="bits per byte")
    axes.plot(steps, values, color=PALETTE[1], linewidth=1.8, marker="o", markersize=4)
    ordered = sorted(baselines.items(), key=lambda item: item[1])
    top = 1.1 * max([np.nanmax(values), *(value for _, value in ordered)]) or 1.0
    for index, (label, value) in enumerate(ordered):
        crowded = index + 1 < len(ordered) and ordered[index + 1][1] - value < 0.07 * top
        reference_line(axes, value, f"{label} {value:.2f}", left=True, under=crowded)
    axes.set_ylim(0, top)


def max_logit_figure(records: Records, threshold: float | None = None) -> Figure | None:
    """Returns the largest attention logits: a panel per layer with a line per head, or a heat map with a row per layer.

    Args:
        records: metrics records.
        threshold: threshold of QK-Clip; its line is drawn if the logits come near it.
    """
    heads = arrays(records, "max_logit_heads", 2)
    if heads is not None and heads[1].shape[1] <= SMALL_MULTIPLES:
        return _max_logit_panels(*heads, threshold)
    total = scalars(records, "max_logit")
    if heads is None and total is None:
        return None
    figure, grid = new_figure(1 + (heads is not None), height=3.2 if heads is None else 7.4, sharex=True)
    if total is None:
        total = heads[0], _nan_max(heads[1], (1, 2))
    axes = style_axes(grid[-1, 0], title="Largest over all layers and heads", x="step", y="attention logit")
    axes.plot(*thin(*total), color=PALETTE[0], linewidth=1.4)
    _threshold(axes, threshold, np.nanmax(total[1]))
    step_ticks(axes)
    if heads is not None:
        steps, layer_NL = heads[0], _nan_max(heads[1], 2)
        style_axes(grid[0, 0], title="Largest attention logit of each layer (over its heads)", y="layer")
        mesh = heat_map(grid[0, 0], *_columns(steps, layer_NL.T), cmap="viridis")
        grid[0, 0].invert_yaxis()
        color_bar(figure, mesh, grid[0, 0], "attention logit")
    return figure


def _max_logit_panels(steps: np.ndarray, logits_NLH: np.ndarray, threshold: float | None) -> Figure:
    layers, heads = logits_NLH.shape[1:]
    columns = min(4, math.ceil(math.sqrt(layers)))
    rows = math.ceil(layers / columns)
    width, height = max(7.0, 3.4 * columns + 1.2), max(3.4, 2.5 * rows + 0.4)
    figure, grid = new_figure(rows, columns, width=width, height=height, sharex=True, sharey=True)
    highest = np.nanmax(logits_NLH)
    has_few_heads = heads <= len(PALETTE)
    for layer, axes in enumerate(grid.flat):
        if layer >= layers:
            axes.set_visible(False)
            continue
        below = layer + columns >= layers
        style_axes(axes, title=f"Layer {layer}", x="step" * below, y="max logit" * (layer % columns == 0))
        axes.tick_params(labelbottom=below)
        for head in range(heads):
            color, alpha = (PALETTE[head], 1.0) if has_few_heads else (PALETTE[0], max(0.1, 4 / heads))
            label = f"head {head}" if has_few_heads else None
            axes.plot(*thin(steps, logits_NLH[:, layer, head]), color=color, alpha=alpha, linewidth=1.3, label=label)
        if not has_few_heads:
            axes.plot(*thin(steps, _nan_max(logits_NLH[:, layer], 1)), color=INK, linewidth=1.4, label="largest")
        _threshold(axes, threshold, highest, named=layer == 0)
        step_ticks(axes)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _threshold(axes: Axes, threshold: float | None, highest: float, named: bool = True) -> None:
    if threshold is None:
        return
    label = f"QK-Clip τ = {threshold:g}" if named else ""
    if highest >= threshold / 3:
        reference_line(axes, threshold, label, ALERT, left=True)
    elif named:  # the line is so far above the curves that it would flatten them
        position = {"transform": axes.transAxes, "va": "top", "fontsize": 9}
        axes.text(0.02, 0.97, f"{label} (above)", color=ALERT, path_effects=HALO, **position)


def expert_load_figure(records: Records) -> Figure | None:
    """Returns each expert's load relative to its layer's mean (of many layers only the last), and max violation."""
    tokens = arrays(records, "expert_tokens", 2)
    violation = scalars(records, "max_violation")
    if tokens is None and violation is None:
        return None
    maps = 0 if tokens is None else tokens[1].shape[1] if tokens[1].shape[1] <= LOAD_PANELS else 1
    rows = maps + (violation is not None)
    tall = [4.4 if maps == 1 and tokens[1].shape[1] > LOAD_PANELS else 2.1] * maps + [2.3] * (violation is not None)
    figure, grid = new_figure(rows, height=sum(tall) + 0.5, height_ratios=tall)
    if tokens is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            load_NLE = tokens[1] / tokens[1].mean(axis=2, keepdims=True)
        draw = _load_over_time if tokens[1].shape[1] <= LOAD_PANELS else _load_last
        mesh = draw(grid[:maps, 0], tokens[0], load_NLE)
        color_bar(figure, mesh, list(grid[:maps, 0]), "load / mean load", extend="max")
    if violation is not None:
        axes = style_axes(grid[-1, 0], title="Max violation, worst layer", x="step", y="busiest / mean - 1")
        _raw_and_smooth(axes, *violation, PALETTE[3])
        axes.set_ylim(bottom=0)
        step_ticks(axes)
    if tokens is not None and maps == tokens[1].shape[1]:
        _align(grid[:, 0], np.concatenate([steps for steps, _ in (tokens, violation or tokens)]))
    return figure


def _load_over_time(panels: np.ndarray, steps: np.ndarray, load_NLE: np.ndarray):
    for layer, axes in enumerate(panels):
        style_axes(axes, title=f"MoE layer {layer}: load of each expert", y="expert")
        mesh = heat_map(axes, *_columns(steps, load_NLE[:, layer].T), cmap="RdBu_r", norm=LOAD_COLORS)
        step_ticks(axes)
    return mesh


def _load_last(panels: np.ndarray, steps: np.ndarray, load_NLE: np.ndarray):
    axes = style_axes(panels[0], title=f"Load of each expert at step {steps[-1]:,.0f}", x="expert", y="MoE layer")
    mesh = heat_map(axes, np.arange(load_NLE.shape[2]), load_NLE[-1], cmap="RdBu_r", norm=LOAD_COLORS)
    axes.invert_yaxis()
    return mesh


def learning_rate_figure(records: Records) -> Figure | None:
    """Returns the learning rate and, if recorded, the norms of the gradient before clipping and of the update."""
    panels = [
        ("learning_rate", "Learning rate", "rate", PALETTE[2], False),
        ("grad_norm", "Gradient norm before clipping", "global L2 norm", PALETTE[4], True),
        ("update_norm", "Norm of the update", "global L2 norm", PALETTE[5], True),
    ]
    return curves(records, panels)


def throughput_figure(records: Records) -> Figure | None:
    """Returns tokens per second and, if recorded, model FLOPs utilisation and memory."""
    panels = [
        ("tokens_per_second", "Throughput", "tokens/s", PALETTE[0], True),
        ("mfu", "Model FLOPs utilisation", "fraction of peak", PALETTE[2], True),
        ("memory_gb", "Peak memory", "GB", PALETTE[5], False),
    ]
    return curves(records, panels)


def curves(records: Records, panels: list[tuple[str, str, str, str, bool]]) -> Figure | None:
    """Returns panels of (key, title, unit, color, whether it is noisy), of the keys that are recorded."""
    recorded = [(scalars(records, key), *rest) for key, *rest in panels]
    recorded = [panel for panel in recorded if panel[0] is not None]
    if not recorded:
        return None
    figure, grid = new_figure(len(recorded), height=2.4 * len(recorded) + 0.6, sharex=True)
    for axes, ((steps, values), title, unit, color, noisy) in zip(grid[:, 0], recorded, strict=True):
        style_axes(axes, title=title, y=unit)
        if noisy:
            _raw_and_smooth(axes, steps, values, color)
        else:
            axes.plot(*thin(steps, values), color=color, linewidth=1.7)
        # A single high peak may exceed the axis.
        usual, highest = np.nanquantile(values, 0.995, method="lower"), np.nanmax(values)
        axes.set_ylim(0, 1.08 * (highest if highest <= PEAK * usual else usual) or 1)
        step_ticks(axes)
    grid[-1, 0].set_xlabel("step")
    return figure


def _raw_and_smooth(
    axes: Axes, steps: np.ndarray, values: np.ndarray, color: str, label: str | None = None
) -> np.ndarray:
    """Draws a noisy curve and its running median; returns the median."""
    steps, values = thin(steps, values)
    smoothed = smooth(values)
    if len(values) >= 80:  # smoothing changes nothing below that
        axes.plot(steps, values, color=color, alpha=0.3, linewidth=0.8, label=label)
        label = label and f"{label}, running median"
    axes.plot(steps, smoothed, color=color, linewidth=1.7, marker="o" if len(values) == 1 else None, label=label)
    return smoothed


def _align(panels: np.ndarray, steps: np.ndarray) -> None:
    """Gives stacked panels the same step axis, without margins and with numbers at the bottom only."""
    if steps.min() < steps.max():
        for axes in panels:
            axes.set_xlim(steps.min(), steps.max())
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    panels[-1].set_xlabel("step")


def _columns(steps: np.ndarray, values_YN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    thinned, values_NY = thin(steps, values_YN.T, 1000)
    return thinned, values_NY.T


def _nan_max(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """``np.nanmax`` that returns NaN without a warning if all values are NaN."""
    return np.fmax.reduce(values, axis=axis)
