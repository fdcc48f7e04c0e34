"""QK-Clip keeps attention logits at its threshold: runs with and without it, at the same seed and learning rate.

Reproduces: Kimi K2, section 2.1, figure 2 (maximum logits with vanilla Muon and with MuonClip). At nano's own learning
rate the logits stay below the report's threshold of 100. The learning rate is therefore raised tenfold and the
threshold lowered to TAU, as the table says. Expected: without the clip S grows to hundreds; with it S stays near TAU
from the step after it first exceeds TAU, at no cost in loss.

    python -m k2jax.reproduce qk_clip --workdir=runs/qk_clip
"""

import numpy as np

from k2jax.config import defaults
from k2jax.report.style import PALETTE, legend, new_figure, reference_line, style_axes
from k2jax.report.table import markdown_table, significant
from k2jax.reproduce import RunResult, Study, Summary, curve

TAU = 12.0
TITLES = {"muon": "Muon without QK-Clip", "muonclip": "MuonClip"}


def get_config():
    """Nano with a higher learning rate and a lower threshold."""
    config = defaults("pretrain", model="nano")
    config.data.sequence_length = 256
    config.train.steps = 200
    config.train.batch_size = 8
    config.optimizer.learning_rate = 2e-2
    config.optimizer.schedule.kind = "constant"
    config.optimizer.schedule.warmup_steps = 20
    config.optimizer.qk_clip_tau = TAU
    config.router.bias_rate = 5e-3
    config.eval.every = 50
    config.eval.sample_tokens = 0
    config.checkpoint.every = 100
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """One run without and one with QK-Clip."""
    return {name: {"optimizer.name": name} for name in ("muon", "muonclip")}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Tabulates the maximum logit S of heads, the share of (head, step) pairs above the threshold, and the loss."""
    config = next(iter(results.values())).config
    tau = config.optimizer.qk_clip_tau
    rows = []
    for name, result in results.items():
        steps, logits_SH = _logits(result)
        losses = curve(result, "val_loss")[1]
        rows.append(
            (
                TITLES[name],
                significant(float(logits_SH.max())),
                significant(float(logits_SH[len(steps) // 2 :].max())),
                f"{(logits_SH > tau).mean() * 100:.1f} %",
                significant(losses[-1], 4) if losses else "none",
                "finished" if result.exit_code == 0 else "stopped on a non-finite value",
            )
        )
    header = ("run", "highest S", "highest S, second half", "(head, step) pairs with S above τ", "held-out loss", "end")
    text = (
        f"Same seed, same batches, learning rate {config.optimizer.learning_rate:g} (raised) and τ = {tau:g} (lowered "
        f"from the report's 100), so that {config.train.steps} steps show the effect. S is the maximum logit of a head "
        "in a step, before that step's clip: with the clip it exceeds τ by the growth of one step.\n\n"
        + markdown_table(header, rows)
    )
    return Summary(text, _figure(results, tau))


def _logits(result: RunResult) -> tuple[list[int], np.ndarray]:
    """Steps, and the maximum logits ``[steps, layers * heads]``."""
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


STUDY = Study(get_config, runs, summarize)
