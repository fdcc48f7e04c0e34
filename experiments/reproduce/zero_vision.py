"""Can fine-tuning on text alone make a model answer questions about pictures?

Reproduces: zero-vision SFT (Kimi K2.5, section 2.2), at the scale of a laptop. A model learns jointly from pictures
with plain captions and from texts about such descriptions, and has never seen a question. It is then fine-tuned on
questions and answers that are transcripts of calls, ``see()`` and ``count(KEY)``: on text alone, where a description
stands in the place of the picture (zero-vision); on pictures, but only one of four kinds of questions, as the report's
visual data were limited; or on pictures and all kinds, which is what unlimited visual data would give. All are asked
about held-out pictures, of all kinds, and so is the start without fine-tuning.
Left out: the interpreter. The model writes the results of its calls itself, so that it must see what ``see()`` returns,
and no call crops, binarises or measures pixels. The report compares agentic tasks after reinforcement learning, too.
Expected: what docs/reproductions.md has, whichever way it fell.

    python -m k2jax.reproduce zero_vision --workdir=runs/zero_vision
"""

from collections.abc import Iterator
from pathlib import Path
import re

import numpy as np

from k2jax.config import source
from k2jax.drawings.canvas import COLOURS, SHAPES
from k2jax.report.style import PALETTE, legend, new_figure, style_axes
from k2jax.report.table import markdown_table
from k2jax.reproduce import RunResult, Study, Summary
from k2jax.reproduce.figures import seed_bars, seed_curves
from k2jax.reproduce.micro import write_data
from k2jax.reproduce.scenes import Scene, captions, conversation, draw_scene
from k2jax.reproduce.seeds import SeedRecords, for_seeds
from k2jax.reproduce.visual import checkpoint_answers, visual_config
from k2jax.tasks.pictures.dataset import data_url

SEEDS = (0, 1, 2)
JOINT_STEPS, SFT_STEPS = 600, 120
SAMPLES, QUESTIONS = 8000, 3000  # of pictures and as many texts; of each way to continue
ASKED = 128  # held-out questions of each kind
KINDS = {"shape": "a shape", "colour": "a colour", "thing": "colour and shape", "all": "everything"}
NARROW = ("shape",)  # kinds of the visual data that are limited
LABELS = {
    "joint": "no fine-tuning",
    "zero_vision": "text alone, all kinds",
    "visual_narrow": "pictures, one kind",
    "visual": "pictures, all kinds",
}
SFT = {"stage": "sft", "train.steps": SFT_STEPS, "optimizer.learning_rate": 3e-3}
FORM = re.compile(r"see\(\):(?P<seen>[a-z ,]+)\ncount\([a-z ]+\):(?P<answer>[0-9])")


def get_config():
    """The model and the data of the joint run, which the others start from."""
    config = visual_config("pretrain", JOINT_STEPS)
    config.data.sources, config.data.held_out = {"samples": source(kind="image_chat")}, 0.02
    config.eval.update({"every": 40, "rows": 24, "final_rows": 100})
    return config


def prepare(workdir: Path):
    """Writes captions and texts of the joint run, and the questions of each way to continue."""
    files = {
        "joint.jsonl": joint_samples(),
        "zero_vision.jsonl": questions(tuple(KINDS), pictures=False),
        "visual_narrow.jsonl": questions(NARROW, pictures=True),
        "visual.jsonl": questions(tuple(KINDS), pictures=True),
    }
    write_data(workdir, files)


def runs():
    """The joint run of each seed, and what continues from it."""
    return for_seeds(SEEDS, _chain)


def _chain(seed: int) -> dict[str, dict]:
    path = lambda name: {"data.sources.samples.path": f"{{workdir}}/{name}.jsonl"}  # noqa: E731
    from_joint = SFT | {"init_from": f"{{workdir}}/seed{seed}_joint"}
    return {"joint": path("joint")} | {name: from_joint | path(name) for name in list(LABELS)[1:]}


def keys_of(kind: str) -> list[str]:
    """What questions of a kind ask the number of."""
    things = [f"{colour} {shape}" for colour in COLOURS for shape in SHAPES]
    return {"shape": list(SHAPES), "colour": list(COLOURS), "thing": things, "all": ["thing"]}[kind]


def number_of(scene: Scene, key: str) -> int:
    """How many things of a picture a key names: a shape, a colour, both, or ``thing`` for all."""
    return sum(key == "thing" or set(key.split()) <= set(thing.split()) for thing in scene.things)


def joint_samples() -> Iterator[dict]:
    """Pictures with captions and texts about descriptions in turn; a text stands alone, as an answer to nothing."""
    for index, caption in enumerate(captions(0, SAMPLES)):
        yield caption
        yield conversation([{"type": "text", "text": ""}], text_about(draw_scene(2, index), index))


def text_about(scene: Scene, index: int) -> str:
    """A description and three numbers of things, in another form than that of questions and calls."""
    rng = np.random.default_rng([3, index])
    keys = [str(rng.choice(keys_of(str(rng.choice(list(KINDS)))))) for _ in range(3)]
    return ";".join([scene.description, *(f"{key}={number_of(scene, key)}" for key in keys)])


def asked(seed: int, index: int, kinds: tuple[str, ...], split: str = "train") -> tuple[Scene, str]:
    """A picture and the key of a question about it, every other time one that is there."""
    rng = np.random.default_rng([seed, index, 4])
    scene, keys = draw_scene(seed, index, split), keys_of(kinds[index % len(kinds)])
    there = [key for key in keys if number_of(scene, key)]
    return scene, str(rng.choice(there if rng.integers(2) else keys))


def parts(scene: Scene, key: str, picture: bool) -> list[dict]:
    """The content of a question, about a picture or its description."""
    shown = {"type": "image", "image": scene.image} if picture else {"type": "text", "text": f"{scene.description}\n"}
    return [shown, {"type": "text", "text": f"How many {key}?"}]


def questions(kinds: tuple[str, ...], pictures: bool) -> Iterator[dict]:
    """Conversations of fine-tuning: a question, and calls with what they return."""
    for index in range(QUESTIONS):
        scene, key = asked(5, index, kinds)
        content = parts(scene, key, pictures)
        if pictures:
            content[0]["image"] = data_url(scene.image)
        else:
            content = [{"type": "text", "text": "".join(part["text"] for part in content)}]
        yield conversation(content, f"see():{scene.description}\ncount({key}):{number_of(scene, key)}")


def held_out() -> list[tuple[Scene, str]]:
    """The questions of the evaluation, kinds in turn."""
    return [asked(6, index, tuple(KINDS), "held_out") for index in range(ASKED * len(KINDS))]


def evaluate(config, workdir):
    """Right answers by kind about held-out pictures, their form, what is seen; and right ones about descriptions."""
    sample, record = held_out(), {}
    for name, picture in (("picture", True), ("text", False)):
        contents = [parts(scene, key, picture) for scene, key in sample]
        answers = checkpoint_answers(config, workdir, contents, max_tokens=96)
        record |= {f"{name}/{key}": value for key, value in scores(sample, answers).items()}
    return record


def scores(sample: list[tuple[Scene, str]], answers: list[str]) -> dict[str, float]:
    """Shares of answers that are right, by kind and in all, well-formed, and that see what there is.

    A number alone is right without the form.
    """
    forms = [FORM.fullmatch(answer) for answer in answers]
    final = [form["answer"] if form else answer.strip() for form, answer in zip(forms, answers, strict=True)]
    right = [answer == str(number_of(*question)) for question, answer in zip(sample, final, strict=True)]
    seen = [bool(form) and form["seen"] == scene.description for form, (scene, _) in zip(forms, sample, strict=True)]
    shares = {kind: right[place :: len(KINDS)] for place, kind in enumerate(KINDS)}
    shares |= {"right": right, "formed": [form is not None for form in forms], "seen": seen}
    return {name: float(np.mean(marks)) for name, marks in shares.items()}


def guesses() -> dict[str, float]:
    """The share of each kind's most frequent answer among the held-out questions."""
    numbers = [number_of(*question) for question in held_out()]
    by_kind = {kind: numbers[place :: len(KINDS)] for place, kind in enumerate(KINDS)}
    return {kind: max(map(of.count, of)) / len(of) for kind, of in by_kind.items()}


def summarize(results: dict[str, RunResult]) -> Summary:
    """Right answers about pictures of each way, by kind of question, and their form."""
    measured = SeedRecords.of(results, LABELS)
    keys = [*(f"picture/{kind}" for kind in KINDS), *(f"picture/{key}" for key in ("right", "formed", "seen")),
            "text/right"]  # fmt: skip
    header = ("fine-tuned on", *KINDS.values(), "all kinds", "well-formed", "all things seen", "descriptions: right")
    rows = [(label, *(measured.spread(name, key) for key in keys)) for name, label in LABELS.items()]
    rows.append(("the most frequent answer", *(f"{share:.3f}" for share in guesses().values()), *[None] * 4))
    gain = lambda other: measured.gain("zero_vision", "picture/right", other)  # noqa: E731
    text = (
        f"Fine-tuned on text alone, the model answers {measured.spread('zero_vision', 'picture/right')} of the "
        f"questions about pictures: {gain('joint')} points over the start, {gain('visual_narrow')} over pictures with "
        f"questions of one kind, {gain('visual')} over pictures with questions of all kinds.\n\n"
        f"{markdown_table(header, rows)}\n"
        f"Shares of {ASKED} held-out questions of each kind; the last column is of the same questions about "
        f"descriptions. Mean (lowest to highest) over {len(measured.seeds)} seeds.\n"
    )
    return Summary(text, _figure(results, measured))


def _figure(results: dict[str, RunResult], measured: SeedRecords):
    figure, axes = new_figure(1, 2, height=4.0, width=11.0)
    for (name, label), color in zip(list(LABELS.items())[1:], PALETTE, strict=False):
        seed_curves(axes[0, 0], results, name, "loss", label=label, color=color)
    style_axes(axes[0, 0], title="Fine-tuning", x="step", y="loss [nats per token]")
    legend(axes[0, 0])
    seed_bars(axes[0, 1], measured, LABELS, {"picture/right": "right", "picture/seen": "all things seen"}, PALETTE[3:])
    style_axes(axes[0, 1], title="Questions about held-out pictures", x="share, mean and range of seeds")
    axes[0, 1].legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=2)
    return figure


STUDY = Study(get_config, runs, summarize, prepare=prepare, evaluate=evaluate)
