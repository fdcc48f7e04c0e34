"""The curves of a run as SVG elements of a page: reward, accuracy, length, entropy, and those of sub-agents."""

from __future__ import annotations

import math
import re

import numpy as np

from k2jax.agents.viewer.markup import Html, element, joined
from k2jax.report.series import Records, scalars, thin

PANELS = {  # title: pattern of the keys of metrics.jsonl
    "reward": r"(.*/)?reward(/.*)?",
    "accuracy": r"(.*/)?(accuracy|greedy|(pass[@^]|avg@)\d+)(/(?!low$|high$).*)?",
    "parallelism of agents": r"(.*/)?swarm/parallelism(/.*)?",
    "response length [tokens]": r"(.*/)?((response_)?length|response_tokens)(/(?!max).*)?",
    "entropy [nats]": r"(.*/)?entropy(/.*)?",
    "mismatch of engine and trainer [nats]": r"(.*/)?mismatch(_mean|/mean|_max|/max|_p99)?",
    "loss": r"(val_)?loss",
    "steps of agents": r"(.*/)?swarm/(critical|total)_steps",
    "sub-agents of an episode": r"swarm/(created|used|assigned|finished|peak)",
    "terms of sub-agents and their weights": r"swarm/(parallel|finish)(_weight)?",
}
MAX_LINES = 6
WIDTH, HEIGHT = 340, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 24
_POINTS = 400
_SMALLEST, _HALF = 1e-30, 0.5  # a range below it is drawn as one value, half of what is drawn around a constant 0


def curves(records: Records) -> Html:
    """A panel for each of ``PANELS`` that the records have values of, at most six lines each; empty without any.

    Args:
        records: of ``k2jax.report.metrics.read_metrics``.
    """
    keys = list(dict.fromkeys(key for record in records for key in record))
    panels = []
    for title, pattern in PANELS.items():
        names = [key for key in keys if re.fullmatch(pattern, key)]
        lines = [(name, *curve) for name in names if (curve := scalars(records, name)) is not None]
        if lines:
            bands = [_band(records, name) for name, *_ in lines[:MAX_LINES]]
            panels.append(_panel(title, lines[:MAX_LINES], bands, len(lines) - MAX_LINES))
    return joined(panels)


def _band(records: Records, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Steps, lower and upper bounds of an interval around a line; None where it has none."""
    low, high = scalars(records, f"{name}/low"), scalars(records, f"{name}/high")
    if low is None or high is None or not np.array_equal(low[0], high[0]):
        return None
    whole_N = np.isfinite(low[1]) & np.isfinite(high[1])
    return (low[0][whole_N], low[1][whole_N], high[1][whole_N]) if whole_N.any() else None


def _panel(title: str, lines: list[tuple[str, np.ndarray, np.ndarray]], bands: list, left_out: int) -> Html:
    steps = np.concatenate([steps_N for _, steps_N, _ in lines])
    bounds = [bound_N for band in bands if band is not None for bound_N in band[1:]]
    values = np.concatenate([values_N for _, _, values_N in lines] + bounds)
    values = values[np.isfinite(values)]
    ticks = nice_ticks(float(values.min()), float(values.max()))
    x_range = float(steps.min()), float(steps.max())
    y_range = min(ticks[0], float(values.min())), max(ticks[-1], float(values.max()))
    drawn = [_axes(ticks, x_range, y_range)]
    for index, band in enumerate(bands):
        if band is not None:
            steps_N, low_N, high_N = band
            corners = [*zip(steps_N, low_N, strict=True), *zip(steps_N[::-1], high_N[::-1], strict=True)]
            points = " ".join(f"{_x(step, x_range):.1f},{_y(value, y_range):.1f}" for step, value in corners)
            drawn.append(element("polygon", points=points, class_=f"band c{index}"))
    legend = []
    for index, (name, steps_N, values_N) in enumerate(lines):
        drawn.append(_line(index, *thin(steps_N, values_N, _POINTS), x_range, y_range))
        last = values_N[np.isfinite(values_N)][-1]
        legend.append(element("li", element("span", class_=f"swatch c{index}"), f"{name} {last:.4g}"))
    if left_out > 0:
        legend.append(element("li", f"and {left_out} more in metrics.jsonl"))
    picture = element("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="curve")
    return element("figure", element("figcaption", title), picture, element("ul", *legend, class_="legend"))


def _axes(ticks: list[float], x_range: tuple[float, float], y_range: tuple[float, float]) -> Html:
    parts = []
    for tick in ticks:
        y = _y(tick, y_range)
        parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid"))
        parts.append(element("text", f"{tick:.6g}", x=_LEFT - 6, y=f"{y + 3.5:.1f}", class_="tick end"))
    bottom = HEIGHT - 6
    parts.append(element("text", f"step {x_range[0]:,.0f}", x=_LEFT, y=bottom, class_="tick"))
    if x_range[1] > x_range[0]:
        parts.append(element("text", f"{x_range[1]:,.0f}", x=WIDTH - _RIGHT, y=bottom, class_="tick end"))
    return joined(parts)


def _line(
    index: int,
    steps_N: np.ndarray,
    values_N: np.ndarray,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> Html:
    """A line for each stretch of finite values, and a point at its end, so that a single value is seen."""
    parts, stretch = [], []
    for step, value in [*zip(steps_N, values_N, strict=True), (0.0, math.nan)]:
        if math.isfinite(value):
            stretch.append((_x(step, x_range), _y(value, y_range)))
        elif stretch:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in stretch)
            parts.append(element("polyline", points=points, class_=f"c{index}"))
            x, y = stretch[-1]
            parts.append(element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.4", class_=f"c{index}"))
            stretch = []
    return joined(parts)


def _x(step: float, x_range: tuple[float, float]) -> float:
    low, high = x_range
    part = (step - low) / (high - low) if high > low else 0.5
    return _LEFT + part * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, y_range: tuple[float, float]) -> float:
    low, high = y_range
    part = (value - low) / (high - low) if high > low else 0.5
    return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)


def nice_ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers of one distance, around or just within a range."""
    smallest = max(1e-9 * max(abs(low), abs(high)), _SMALLEST)
    if high - low < smallest:
        middle, half = (low + high) / 2, max(abs(low + high) / 4, _HALF if low == high == 0 else smallest)
        low, high = middle - half, middle + half
    rough = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(rough))
    distance = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))
    first, last = math.floor(low / distance), math.ceil(high / distance)
    return [float(f"{index * distance:.12g}") for index in range(first, last + 1)]
