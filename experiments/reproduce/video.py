"""Four times as long a video in the same context: chunks of four frames that share their tokens.

Reproduces: the temporal compression of MoonViT-3D (Kimi K2.5, section 4.2: four frames form a chunk whose patches
attend to each other and whose features are averaged over time, so that four times as long a video fits into a context),
at the scale of a laptop. Clips of 28 x 28 pixels show a square that jumps once (which way?), or two squares for a frame
each (which came first?). Three ways spend the same tokens on a clip, those of four chunks: clips of four frames, each a
chunk of its own; clips of sixteen frames in chunks of four; and every fourth frame of the latter, each a chunk of its
own, which misses what happens between them. Everything else is equal: steps, rows, clips, seeds. An answer first
says what each chunk shows. A clip is a list of frames, not a file that a decoder reads.
Left out: sixteen frames in sixteen chunks, which need four times the tokens; so a difference between the first two ways
is that of averaging and of the longer clip together.
Expected: what docs/reproductions.md has, whichever way it fell.

    python -m k2jax.reproduce video --workdir=runs/video
"""

from pathlib import Path

import numpy as np

from k2jax.config import source
from k2jax.data.images.frames import Clip
from k2jax.data.images.video_process import SAMPLED_PER_SECOND
from k2jax.drawings.clips import CLIP_KINDS, ClipSample, synthetic_clip
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary, curve
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.scenes import conversation
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.reproduce.visual import checkpoint_answers, visual_config
from k2jax.tasks.pictures.dataset import data_url

SEEDS = (0, 1, 2)
STEPS = 1000
CLIPS = 16_000
ASKED = 256  # held-out clips of each kind
CHUNKS, POOLED = 4, 4
"""Chunks of a clip, and frames of a chunk where they are averaged."""
LABELS = {
    "short": f"{CHUNKS} frames, {CHUNKS} chunks",
    "pooled": f"{CHUNKS * POOLED} frames, {CHUNKS} chunks",
    "sampled": f"every {POOLED}th of {CHUNKS * POOLED} frames, {CHUNKS} chunks",
}
KINDS = {"way": "which way", "first": "which first"}
GUESSES = {"way": 1 / 4, "first": 1 / 2}


def get_config():
    """The model and the data that all runs share."""
    config = visual_config("sft", STEPS)
    config.optimizer.learning_rate = 3e-3  # at 1e-2 the tower changes faster than the decoder learns to look
    config.data.sources = {"clips": source(kind="image_chat")}
    config.data.held_out = 0.01
    config.eval.every = 100
    config.eval.rows = 40
    return config


def runs():
    """The three ways of each seed."""
    return for_seeds(SEEDS, lambda _: {name: _overrides(name) for name in LABELS})


def _overrides(name: str) -> dict:
    frames = POOLED if name == "pooled" else 1
    patches = 2 * CHUNKS * frames * 4  # two clips fit into a row, and a frame has four patches
    path = {"data.sources.clips.path": f"{{workdir}}/{name}.jsonl"}
    return path | {"model.vision.frames": frames, "data.images.patches": patches}


def clip_of(name: str, index: int, seed: int = 0, split: str = "train"):
    """Sample ``index`` as a way shows it: its clip, question and answer, kinds in turn."""
    kind = CLIP_KINDS[index % len(CLIP_KINDS)]
    frames = CHUNKS if name == "short" else CHUNKS * POOLED
    sample = synthetic_clip(seed, index, kind=kind, frames=frames, split=split)
    every = POOLED if name == "sampled" else 1
    shown = sample.frames[::every]
    return sample, Clip(shown, [number * every / SAMPLED_PER_SECOND for number in range(len(shown))])


def prepare(workdir: Path):
    """Draws the clips of each way and writes questions and answers about them."""
    write_data(workdir, {f"{name}.jsonl": _conversations(name) for name in LABELS})


def _conversations(name: str):
    for index in range(CLIPS):
        sample, clip = clip_of(name, index)
        rate = 1 / (clip.times[1] - clip.times[0])
        video = {"type": "video", "video": [data_url(frame) for frame in clip.frames], "fps": rate}
        yield conversation([video, {"type": "text", "text": sample.question}], worked_answer(sample))


def worked_answer(sample: ClipSample) -> str:
    """The answer, after what each chunk of the clip shows: most words of it ask for what a feature holds.

    Of ``way`` that is the square's corner at the chunk's end [pixels], of ``first`` the colours that come in the chunk.
    """
    frames = len(sample.shown) // CHUNKS
    chunks = [sample.shown[start : start + frames] for start in range(0, len(sample.shown), frames)]
    if sample.kind == "way":
        seen = ["{} {}".format(*box[:2]) for chunk in chunks for box in chunk[-1].values()]
    else:
        seen = ["+".join(colour for shown in chunk for colour in shown) or "-" for chunk in chunks]
    return f"{','.join(seen)}: {sample.answer}"


def evaluate(config, workdir):
    """Right answers about held-out clips, by kind."""
    name = workdir.name.partition("_")[2]
    asked = [clip_of(name, index, seed=1, split="held_out") for index in range(ASKED * len(CLIP_KINDS))]
    contents = [[{"type": "video", "video": clip}, {"type": "text", "text": sample.question}] for sample, clip in asked]
    answers = checkpoint_answers(config, workdir, contents, max_tokens=40)
    right = [sample.answer == answer.rpartition(": ")[2] for (sample, _), answer in zip(asked, answers, strict=True)]
    return {kind: float(np.mean(right[place :: len(CLIP_KINDS)])) for place, kind in enumerate(CLIP_KINDS)}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Right answers of each way, and how far the compressed clips are from clips of a quarter of their length."""
    measured = SeedRecords.of(results, LABELS)
    losses = SeedRecords.of(results, LABELS, lambda result: {"loss": curve(result, "val_loss")[1][-1]})
    rows = [
        (label, *(measured.spread(name, kind) for kind in KINDS), losses.spread(name, "loss"))
        for name, label in LABELS.items()
    ]
    rows.append(("guesses", *(f"{GUESSES[kind]:.3f}" for kind in KINDS), None))
    gain = lambda kind, other: measured.gain("pooled", kind, other)  # noqa: E731
    sentences = [
        f"*{what}*: clips four times as long in as many tokens gain {gain(kind, 'short')} points over the short ones, "
        f"and {gain(kind, 'sampled')} over every {POOLED}th frame."
        for kind, what in KINDS.items()
    ]
    text = (
        f"{' '.join(sentences)}\n\n{markdown_table(('clip', *KINDS.values(), 'held-out loss'), rows)}\n"
        f"Right greedy answers about {ASKED} held-out clips of each kind, whose standard error at a share of one half "
        f"is {50 / ASKED**0.5:.1f} points, and the loss of a token of the answers [nats]; mean (lowest to highest) "
        f"over {len(measured.seeds)} seeds.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    for (name, label), color in zip(LABELS.items(), PALETTE, strict=False):
        seed_curves(axes[0, 0], results, name, "val_loss", label=label, color=color)
    seed_bars(axes[0, 1], measured, LABELS, KINDS, PALETTE[3:])
    for kind, color in zip(KINDS, PALETTE[3:], strict=False):
        axes[0, 1].axvline(GUESSES[kind], color=color, linewidth=1, linestyle=":")
    style_axes(axes[0, 0], title="Held-out answers", x="step", y="loss [nats per token]")
    style_axes(axes[0, 1], title="Right; dotted: guesses", x="share of clips, mean and range of seeds")
    legend(axes[0, 0])
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, evaluate=evaluate)
