"""Early, mid or late: when a model should first see images, at equal budgets of image and of text tokens.

Reproduces: the ablation of vision-text fusion of Kimi K2.5 (section 2.1, table 1; appendix B.1, figure 9), at the scale
of a laptop. A tenth of the run's tokens belong to samples with images: throughout (early), as a fifth of the second
half (mid), or as half of the last fifth (late). The text is the standard library of Python in bytes; a picture of 28 x
28 pixels shows a shape, and its text is the name, one of twelve. All parts learn together from the first image on; the
rate is constant after the warm-up, so that late images do not meet a smaller one. The report compares benchmarks; here
it is the loss of held-out text and captions, and the share of pictures that are named. The report's "dip" is how far
the loss of text rises when images come; the other ways, which meet nothing new at that moment, say what is noise.
Expected: what docs/reproductions.md has, whichever way it fell.

    python -m k2jax.reproduce fusion --workdir=runs/fusion
"""

from pathlib import Path

import numpy as np

from k2jax.config import source
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table, percent
from k2jax.reproduce import RunResult, Study, Summary, curve, spread
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.scenes import captions, draw_scene
from k2jax.reproduce.seeds import SeedRecords, for_seeds, seeds_of
from k2jax.reproduce.visual import checkpoint_answers, visual_config

SEEDS = (0, 1, 2)
STEPS, EVERY = 400, 10
PICTURES = 8000
ASKED = 256  # held-out pictures that are named at the end
AFTER = 0.06  # of the run, after images come, in which a rise is looked for
MOMENTS = {"rise/50": 0.5, "rise/80": 0.8}
FUSIONS = {"early": ((0.1,), (0.0,)), "mid": ((0.0, 0.2), (0.0, 0.5)), "late": ((0.0, 0.5), (0.0, 0.8))}
LABELS = {"early": "early, 10:90 from 0 %", "mid": "mid, 20:80 from 50 %", "late": "late, 50:50 from 80 %"}
TEXT, IMAGES = "val_loss/text", "val_loss/captions"
COLUMNS = {TEXT: "loss of text", IMAGES: "loss of captions", "named": "named", "colour": "colour named"}


def get_config():
    """The model and the data that all runs share."""
    config = visual_config("pretrain", STEPS)
    config.data.sources = {
        "text": source(kind="stdlib"),
        "captions": source(kind="image_chat", path="{workdir}/captions.jsonl"),
    }
    config.data.images.patches = 48
    config.data.held_out = 0.02
    config.optimizer.schedule.kind = "constant"
    config.optimizer.learning_rate = 5e-3
    config.eval.by_source = True
    config.eval.every = EVERY
    config.eval.rows = config.eval.final_rows = 48  # the same at every step, so that the curves have no seam
    return config


def prepare(workdir: Path):
    """Draws the pictures and writes their captions."""
    write_data(workdir, {"captions.jsonl": captions(0, PICTURES, cells=1)})


def runs():
    """The three ways of each seed."""
    path = {"data.sources.captions.path": "{workdir}/captions.jsonl"}
    fusions = {
        name: path | {"data.images.share": shares, "data.images.share_from": starts}
        for name, (shares, starts) in FUSIONS.items()
    }
    return for_seeds(SEEDS, lambda _: fusions)


def evaluate(config, workdir):
    """Held-out pictures that are named rightly."""
    scenes = [draw_scene(1, index, "held_out", cells=1) for index in range(ASKED)]
    contents = [[{"type": "image", "image": scene.image}] for scene in scenes]
    answers = checkpoint_answers(config, workdir, contents, max_tokens=24)
    return shares_named([scene.description for scene in scenes], answers)


def shares_named(expected: list[str], answers: list[str]) -> dict[str, float]:
    """The share of pictures whose name is the answer, and of those whose colour it begins with."""
    pairs = list(zip(expected, answers, strict=True))
    colours = [name.split()[0] == answer.partition(" ")[0] for name, answer in pairs]
    return {"named": float(np.mean([name == answer for name, answer in pairs])), "colour": float(np.mean(colours))}


def rise(result: RunResult, start: float) -> float | None:
    """How far the loss of text rises soon after a moment over the last one before it [nats per token].

    Args:
        result: of a run.
        start: the moment, as a share of the run.
    """
    steps, losses = curve(result, TEXT)
    total = result.config.train.steps
    soon = [loss for t, loss in zip(steps, losses, strict=True) if 0 < t - start * total <= AFTER * total]
    before = [loss for t, loss in zip(steps, losses, strict=True) if t <= start * total]
    return max(soon) - before[-1] if soon and before else None


def summarize(results: dict[str, RunResult]) -> Summary:
    """Losses at the end and the dip of each way, and whether early fusion is ahead on every seed."""
    names = list(FUSIONS)
    measured = SeedRecords.of(results, names, _measured)
    rows = [
        (LABELS[name], *(measured.spread(name, key) for key in (*COLUMNS, *MOMENTS)),
         measured.spread(name, "tokens", 0))
        for name in names
    ]  # fmt: skip
    header = ("images", *COLUMNS.values(), "rise at 50 %", "rise at 80 %", "tokens [thousands]")
    verdicts = " ".join(_verdict(measured, key, what) for key, what in ((TEXT, "text"), (IMAGES, "captions")))
    text = (
        f"{verdicts}\n\n{markdown_table(header, rows)}\nLosses of held-out data at the end [nats per token]; shares "
        f"of {ASKED} held-out pictures (guesses name 1 in 12 rightly, and 1 colour in 4); mean (lowest to highest) "
        f"over {len(measured.seeds)} seeds. A rise is the highest loss of text within {percent(AFTER, 1)} of the run "
        "after a moment, less the last one before it: images come at 50 % in mid and at 80 % in late fusion.\n"
    )
    return Summary(text, _figure(results))


def _measured(result: RunResult) -> dict:
    ends = {key: values[-1] for key in (TEXT, IMAGES) if (values := curve(result, key)[1])}
    rises = {key: rise(result, start) for key, start in MOMENTS.items()}
    return dict(result.evaluation) | ends | rises | {"tokens": curve(result, "tokens")[1][-1] / 1000}


def _verdict(measured: SeedRecords, key: str, what: str) -> str:
    """Which way has the lowest loss on how many seeds, and by how much early and late differ."""
    losses = {name: measured.values(name, key) for name in FUSIONS}
    best = [min(FUSIONS, key=lambda name: losses[name][place]) for place in range(len(measured.seeds))]
    wins = ", ".join(f"{name} on {best.count(name)}" for name in FUSIONS)
    differences = [late - early for early, late in zip(losses["early"], losses["late"], strict=True)]
    return (
        f"The loss of {what} is lowest with {wins} of {len(best)} seeds; late less early fusion is "
        f"{spread(differences)}."
    )


def _figure(results: dict[str, RunResult]):
    figure, axes = new_figure(1, 3, width=13.0, height=4.0)
    for name, color in zip(FUSIONS, PALETTE, strict=False):
        for panel, key in ((axes[0, 0], TEXT), (axes[0, 1], TEXT), (axes[0, 2], IMAGES)):
            seed_curves(panel, results, name, key, label=LABELS[name], color=color)
    steps = next(iter(results.values())).config.train.steps
    for panel in axes[0]:
        for start in (0.5, 0.8):
            panel.axvline(start * steps, color="0.6", linewidth=0.8, linestyle=":")
    _zoom(axes[0, 1], results, 0.4 * steps)
    style_axes(axes[0, 0], title="Held-out text", x="step", y="loss [nats per token]")
    style_axes(axes[0, 1], title="The same, where images come", x="step", y="loss [nats per token]")
    style_axes(axes[0, 2], title="Held-out captions", x="step", y="loss [nats per token]")
    legend(axes[0, 2])
    return figure


def _zoom(panel, results: dict[str, RunResult], first: float):
    """Shows a panel from a step on, with the range of what is there."""
    shown = [
        loss
        for seed in seeds_of(results)
        for name in FUSIONS
        for t, loss in zip(*curve(results[f"seed{seed}_{name}"], TEXT), strict=True)
        if t >= first
    ]
    panel.set_xlim(left=first)
    if shown:
        panel.set_ylim(min(shown) - 0.02, max(shown) + 0.02)


STUDY = Study(get_config, runs, summarize, prepare=prepare, evaluate=evaluate)
