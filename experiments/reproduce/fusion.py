"""Early, mid or late: when a model should first see images, at equal budgets of image and of text tokens.

Reproduces: the ablation of vision-text fusion of Kimi K2.5 (section 2.1, table 1; appendix B.1, figure 9), at the scale
of a laptop. A tenth of the run's tokens belong to samples with images: throughout (early), as a fifth of the second
half (mid), or as half of the last fifth (late). The text is the standard library of Python in bytes; a picture shows
one to four shapes, and its text names them. All parts learn together from the first image on; the rate is constant
after the warm-up, so that late images do not meet a smaller one. The report compares benchmarks; here it is the loss of
held-out text and captions, and the things that are named. The report's "dip" is how far the loss of text rises above
its lowest value before, when images come.
Expected: what docs/reproductions.md has, whichever way it fell.

    python -m k2jax.reproduce fusion --workdir=runs/fusion
"""

from pathlib import Path

import numpy as np

from k2jax.config import source
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Summary, curve, spread
from k2jax.reproduce.figures import seed_curves
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.scenes import captions, draw_scene
from k2jax.reproduce.seeds import SeedRecords, for_seeds, seeds_of
from k2jax.reproduce.visual import checkpoint_answers, visual_config

SEEDS = (0, 1, 2)
STEPS, EVERY = 800, 20
PICTURES = 8000
ASKED = 256  # held-out pictures that are described at the end
AFTER = 0.06  # of the run, after images come, in which the dip is looked for
FUSIONS = {"early": ((0.1,), (0.0,)), "mid": ((0.0, 0.2), (0.0, 0.5)), "late": ((0.0, 0.5), (0.0, 0.8))}
LABELS = {"early": "early, 10:90 from 0 %", "mid": "mid, 20:80 from 50 %", "late": "late, 50:50 from 80 %"}
TEXT, IMAGES = "val_loss/text", "val_loss/captions"
COLUMNS = {TEXT: "loss of text", IMAGES: "loss of captions", "named": "things named", "all_named": "all named"}


def get_config():
    """The model and the data that all runs share."""
    config = visual_config("pretrain", STEPS)
    config.data.sources = {
        "text": source(kind="stdlib"),
        "captions": source(kind="image_chat", path="{workdir}/captions.jsonl"),
    }
    config.data.held_out = 0.02
    config.optimizer.schedule.kind = "constant"
    config.optimizer.learning_rate = 5e-3
    config.eval.by_source = True
    config.eval.every = EVERY
    config.eval.rows = 24
    config.eval.final_rows = 200
    return config


def prepare(workdir: Path):
    """Draws the pictures and writes their captions."""
    write_data(workdir, {"captions.jsonl": captions(0, PICTURES)})


def runs():
    """For each seed the three ways."""
    path = {"data.sources.captions.path": "{workdir}/captions.jsonl"}
    fusions = {
        name: path | {"data.images.share": shares, "data.images.share_from": starts}
        for name, (shares, starts) in FUSIONS.items()
    }
    return for_seeds(SEEDS, lambda _: fusions)


def evaluate(config, workdir):
    """Things that are named at their place in held-out pictures."""
    scenes = [draw_scene(1, index, "held_out") for index in range(ASKED)]
    contents = [[{"type": "image", "image": scene.image}] for scene in scenes]
    answers = checkpoint_answers(config, workdir, contents, max_tokens=80)
    return shares_named([scene.things for scene in scenes], answers)


def shares_named(wanted, answers) -> dict[str, float]:
    """The share of all things that stand at their place of the answer, and of pictures whose answer is exact."""
    pairs = [(things, answer.split(",")) for things, answer in zip(wanted, answers, strict=True)]
    marks = [thing == said for things, given in pairs for thing, said in zip(things, [*given, *[""] * 4], strict=False)]
    return {"named": float(np.mean(marks)), "all_named": float(np.mean([list(a) == b for a, b in pairs]))}


def dip(result: RunResult, start: float) -> float | None:
    """How far the loss of text rises above the lowest one before images come, soon after [nats per token].

    Args:
        result: of a run.
        start: where images come, as a share of the run; None is returned of 0.
    """
    steps, losses = curve(result, TEXT)
    begin = start * result.config.train.steps
    soon = [loss for t, loss in zip(steps, losses, strict=True) if 0 < t - begin <= AFTER * result.config.train.steps]
    before = [loss for t, loss in zip(steps, losses, strict=True) if t <= begin]
    return max(soon) - min(before) if soon and before else None


def summarize(results: dict[str, RunResult]) -> Summary:
    """Losses at the end and the dip of each way, and whether early fusion is ahead on every seed."""
    names = list(FUSIONS)
    measured = SeedRecords.of(results, names, _measured)
    rows = [
        (LABELS[name], *(measured.spread(name, key) for key in COLUMNS), measured.spread(name, "dip"),
         measured.spread(name, "image_tokens", 0))
        for name in names
    ]  # fmt: skip
    header = ("images", *COLUMNS.values(), "dip of text", "tokens [thousands]")
    verdicts = " ".join(_verdict(measured, key, what) for key, what in ((TEXT, "text"), (IMAGES, "captions")))
    text = (
        f"{verdicts}\n\n{markdown_table(header, rows)}\nLosses of held-out data at the end [nats per token]; things "
        f"named at their place, and pictures all of whose things are, of {ASKED} held-out ones; mean (lowest to "
        f"highest) over {len(measured.seeds)} seeds. The dip is the highest loss of text within {AFTER:.0%} of the run "
        "after images come, less the lowest before.\n"
    )
    return Summary(text, _figure(results))


def _measured(result: RunResult) -> dict:
    ends = {key: values[-1] for key in (TEXT, IMAGES) if (values := curve(result, key)[1])}
    start = result.config.data.images.share_from[-1]
    tokens = curve(result, "tokens")[1][-1] / 1000
    return dict(result.evaluation) | ends | {"dip": dip(result, start) if start else None, "image_tokens": tokens}


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
