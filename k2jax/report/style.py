"""The style of all plots, through matplotlib's objects: without pyplot, global state or a display."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter
import numpy as np

from k2jax.files.atomic import write_atomic

DPI = 120  # pixels per inch
INK, MUTED, GRID, ALERT = "#20242c", "#7d838d", "#e7e9ec", "#c0392b"
HALO = [withStroke(linewidth=3, foreground="white")]  # keeps text readable on top of curves
PALETTE = ("#3568b0", "#d98324", "#2f9270", "#a8447d", "#6f58a8", "#8a6a42", "#3f9fbf", "#b09a1f")


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 9.0, height: float = 3.4, **subplots: Any
) -> tuple[Figure, np.ndarray]:
    """Returns a white figure with a grid of axes, an object array [rows, columns].

    Args:
        rows: number of rows of panels.
        columns: number of columns of panels.
        width: width of the whole figure [inches of 120 pixels].
        height: height of the whole figure [inches of 120 pixels].
        subplots: further arguments of ``Figure.subplots`` (sharex, sharey, height_ratios, ...).
    """
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09)  # [inches]; with the default, titles touch the border
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **subplots)


def style_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> Axes:
    """Sets the title, labels (``x`` and ``y``, with units), grid and frame of axes; returns the axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)
    axes.tick_params(labelsize=9, color=MUTED, labelcolor=INK, length=3)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    return axes


def step_ticks(axes: Axes) -> None:
    """Formats the x axis as whole steps (12,000), and the y axis likewise if it reaches 1,000."""
    formatter = FuncFormatter(lambda value, _: f"{value:,.10g}")
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.get_major_locator().set_params(integer=True)  # there is no step 1.5
    if axes.get_ylim()[1] >= 1000:
        axes.yaxis.set_major_formatter(formatter)


def legend(axes: Axes, **options: Any) -> None:
    """Adds a legend without a frame, if the axes have labelled lines."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(**({"frameon": False, "fontsize": 9, "labelcolor": INK} | options))


def reference_line(
    axes: Axes, value: float, label: str, color: str = MUTED, *, left: bool = False, under: bool = False
) -> None:
    """Draws a dashed horizontal line with its label above (or under) it, at the right (or left) end."""
    axes.axhline(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1.5)
    axes.annotate(
        label,
        (0 if left else 1, value),
        xycoords=("axes fraction", "data"),
        xytext=(4 if left else -2, -3 if under else 3),
        textcoords="offset points",
        ha="left" if left else "right",
        va="top" if under else "bottom",
        fontsize=9,
        color=color,
        path_effects=HALO,
    )


def edges(centres_N: np.ndarray) -> np.ndarray:
    """Returns the boundaries [N+1] of the cells of a heat map whose columns have ascending positions [N]."""
    if len(centres_N) == 1:
        return np.array([centres_N[0] - 0.5, centres_N[0] + 0.5])
    middles = (centres_N[1:] + centres_N[:-1]) / 2
    return np.concatenate(
        [[centres_N[0] - (middles[0] - centres_N[0])], middles, [centres_N[-1] + (centres_N[-1] - middles[-1])]]
    )


def heat_map(axes: Axes, x_N: np.ndarray, values_YN: np.ndarray, **options: Any) -> Any:
    """Draws a heat map with a row per index 0..Y-1 and a column per position ``x_N``; NaN is grey."""
    rows = np.arange(values_YN.shape[0] + 1) - 0.5
    mesh = axes.pcolormesh(edges(x_N), rows, np.ma.masked_invalid(values_YN), rasterized=True, **options)
    axes.set_facecolor(GRID)
    axes.grid(False)
    axes.yaxis.get_major_locator().set_params(integer=True)
    return mesh


def color_bar(figure: Figure, mesh: Any, axes: Any, label: str, **options: Any) -> None:
    """Adds a narrow color bar beside one or more axes."""
    bar = figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02, aspect=30, **options)
    bar.set_label(label, fontsize=10, color=INK)
    bar.ax.tick_params(labelsize=9, color=MUTED, labelcolor=INK, length=3)
    bar.outline.set_visible(False)


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Writes a PNG with 120 pixels per inch atomically; returns its path."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return write_atomic(path, buffer.getvalue())
