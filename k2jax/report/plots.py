"""The plots of a workdir: ``plots/*.png``, drawn from ``metrics.jsonl``."""

from __future__ import annotations

from pathlib import Path

from k2jax.report.figures import (
    expert_load_figure,
    learning_rate_figure,
    loss_figure,
    max_logit_figure,
    throughput_figure,
)
from k2jax.report.metrics import read_metrics
from k2jax.report.policy_figures import (
    accuracy_figure,
    drift_figure,
    responses_figure,
    swarm_figure,
    verdicts_figure,
)
from k2jax.report.seams import mark_seams
from k2jax.report.series import MOST_LISTS
from k2jax.report.style import save_figure
from k2jax.report.summary import NO_BASELINES, Baselines

FOLDER = "plots"


def draw_plots(
    workdir: Path | str, *, baselines: Baselines = NO_BASELINES, qk_clip_tau: float | None = None
) -> list[Path]:
    """Draws every plot for which the workdir's metrics suffice; each file is replaced atomically.

    Args:
        workdir: folder of the run.
        baselines: bits per byte of simple compressors on the held-out text.
        qk_clip_tau: threshold of QK-Clip; None omits its line.

    Returns:
        The paths of the files.
    """
    records = read_metrics(workdir, MOST_LISTS)
    figures = {
        "loss": mark_seams(loss_figure(records, baselines), records),
        "max_logit": max_logit_figure(records, qk_clip_tau),
        "expert_load": expert_load_figure(records),
        "learning_rate": mark_seams(learning_rate_figure(records), records),
        "throughput": mark_seams(throughput_figure(records), records),
        "accuracy": accuracy_figure(records),
        "responses": responses_figure(records),
        "drift": drift_figure(records),
        "swarm": swarm_figure(records),
        "verdicts": verdicts_figure(records),
    }
    folder = Path(workdir) / FOLDER
    return [save_figure(figure, folder / f"{name}.png") for name, figure in figures.items() if figure is not None]
