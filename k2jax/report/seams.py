"""Marks where one phase of a run ends and the next begins, in the figures whose horizontal axis is the step."""

from __future__ import annotations

import itertools

from matplotlib.figure import Figure

from k2jax.report.series import Records
from k2jax.report.style import HALO, MUTED


def seams(records: Records) -> list[tuple[float, str]]:
    """Between which steps a phase begins that is not the first, ``step - 0.5``, and its name."""
    named = [record for record in records if record.get("phase")]
    return [
        (now["step"] - 0.5, str(now["phase"]))
        for before, now in itertools.pairwise(named)
        if before["phase"] != now["phase"]
    ]


def mark_seams(figure: Figure | None, records: Records) -> Figure | None:
    """Draws a dotted line at every seam, with the name of the phase behind it in the first panel."""
    for step, name in seams(records) if figure is not None else ():
        for axes in figure.axes:
            axes.axvline(step, color=MUTED, linewidth=1.0, linestyle=":", zorder=1.4)
        figure.axes[0].annotate(
            name,
            (step, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=MUTED,
            path_effects=HALO,
        )
    return figure
