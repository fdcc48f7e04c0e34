"""The page of curves: a picture of each, and a table of exponents and bends."""

from __future__ import annotations

from pathlib import Path

from k2jax.bench.curves.curves import CURVES
from k2jax.bench.curves.fit import bend, exponent
from k2jax.report.style import ALERT, PALETTE, new_figure, save_figure, style_axes
from k2jax.report.table import markdown_table, significant

Points = dict[str, dict[int, float]]
"""Costs by the size of the point, of each curve."""


def table(points: Points) -> str:
    """A line of Markdown for each curve that has two points or more."""
    lines = []
    for name, costs in points.items():
        if len(costs) < 2:
            continue
        curve, (sizes, values) = CURVES[name], _sorted(costs)
        found = bend(sizes, values)
        lines.append(
            (
                f"`{name}`: {curve.title}, {curve.cost}",
                f"{sizes[0]:,} to {sizes[-1]:,} {curve.size}",
                f"{significant(values[0])} to {significant(values[-1])}",
                f"{exponent(sizes, values):.2f}",
                "none" if found is None else f"at {found.at:,.0f}: {found.before:.2f}, then {found.after:.2f}",
                curve.expected,
            )
        )
    return markdown_table(("cost", "against", "from, to", "exponent", "bend", "expected"), lines)


def draw(points: Points, path: Path) -> None:
    """Draws every curve that has two points or more, in logarithms, with its fitted lines."""
    shown = [name for name in points if len(points[name]) > 1]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = new_figure(rows, columns, width=4.2 * columns, height=3.1 * rows)
    for place, one in enumerate(axes.flat):
        if place >= len(shown):
            one.set_visible(False)
            continue
        name = shown[place]
        curve, (sizes, values) = CURVES[name], _sorted(points[name])
        style_axes(one, title=curve.title, x=curve.size, y=curve.cost)
        one.set_xscale("log", base=2 if sizes[-1] <= 64 else 10)
        one.set_yscale("log")
        one.plot(sizes, values, "o-", color=PALETTE[place % len(PALETTE)], markersize=4, linewidth=1.4)
        low, high = min(values), max(values)
        one.set_ylim(low / 1.6, max(high, 3 * low) * 1.6)  # a flat curve looks flat
        found = bend(sizes, values)
        text = f"exponent {exponent(sizes, values):.2f}"
        if found is not None:
            one.axvline(found.at, color=ALERT, linewidth=0.8, linestyle=":")
            text = f"exponents {found.before:.2f}, {found.after:.2f}"
        one.text(0.03, 0.93, text, transform=one.transAxes, fontsize=9, verticalalignment="top")
    save_figure(figure, path)


def _sorted(costs: dict[int, float]) -> tuple[list[int], list[float]]:
    sizes = sorted(costs)
    return sizes, [costs[size] for size in sizes]
