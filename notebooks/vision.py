# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A small Kimi K2.5 learns to see
#
# A Kimi K2 of 0.7 million parameters with a tower of 0.2 million (MoonViT-3D and projector, as in Kimi K2.5) learns to
# find shapes in pictures, from random weights, on a free CPU. It is shown a picture and a color, and answers with the
# box of the cell where the shape of that color lies. Tower, projector and decoder learn together, by Muon with QK-Clip.
#
# The notebook draws the pictures, trains, asks about pictures that were never shown, asks again about exchanged
# pictures, and looks at the decoder's attention. It takes about three minutes of processor time. One run was right
# about 93 % of 200 unseen pictures, and about 18 % where the pictures were exchanged.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import os
from pathlib import Path
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None or importlib.util.find_spec("PIL") is None:
    source = "..[vision]" if os.path.exists("../setup.py") else "k2jax[vision] @ git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "300"))  # fewer for a quick look
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/vision"))

# %%
from k2jax import runtime

runtime.prepare()

# %% [markdown]
# ## Pictures with exact labels
#
# Each picture has 56 pixels a side and four cells. Two to four shapes of different colors lie in different cells. One
# color is asked for; the answer is the box of its cell, in thousandths of the picture's sides.

# %%
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

CELL, CELLS = 28, 2  # the tower makes one feature of 28 x 28 pixels
COLORS = {"red": (220, 30, 30), "green": (30, 160, 60), "blue": (40, 70, 220), "orange": (250, 150, 20)}


class Sample(NamedTuple):
    """A picture, the color that is asked for, and the box of its cell."""

    image: Image.Image
    color: str
    box: list[int]


def draw(rng):
    """Makes a sample."""
    image = Image.new("RGB", (CELL * CELLS,) * 2, tuple(int(value) for value in rng.integers(112, 145, 3)))
    pen, count = ImageDraw.Draw(image), rng.integers(2, 5)
    colors, boxes = rng.permutation(list(COLORS))[:count], []
    for color, cell in zip(colors, rng.permutation(CELLS**2), strict=False):
        column, row, side = int(cell % CELLS), int(cell // CELLS), int(rng.integers(16, 25))
        x, y = (place * CELL + int(rng.integers(1, CELL - side)) for place in (column, row))
        corners = (x, y, x + side - 1, y + side - 1)
        [pen.ellipse, pen.rectangle][rng.integers(2)](corners, fill=COLORS[color])
        boxes.append([edge * 1000 // CELLS for edge in (column, row, column + 1, row + 1)])
    return Sample(image, str(colors[0]), boxes[0])


rng = np.random.default_rng(0)
samples = [draw(rng) for _ in range(4000)]
unseen = [draw(np.random.default_rng([1, number])) for number in range(200)]

# %%
from matplotlib.patches import Rectangle
import matplotlib.pyplot as plt


def show(axis, sample, box=None, color="white"):
    """A picture, with a box."""
    axis.imshow(sample.image)
    axis.set(xticks=[], yticks=[])
    if box is not None:
        left, top, right, bottom = (edge * CELL * CELLS / 1000 - 0.5 for edge in box)
        frame = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, linewidth=3)
        axis.add_patch(frame).set_clip_on(False)


figure, axes = plt.subplots(1, 6, figsize=(10, 2.2))
for axis, sample in zip(axes, samples, strict=False):
    show(axis, sample, sample.box)
    axis.set_title(f"{sample.color}?", fontsize=10)
figure.suptitle("What the model is shown, and the boxes that it is to answer with")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Conversations as data
#
# A source of `kind="image_chat"` reads JSON lines of messages, in which images are paths. Labels are parts of content:
# `boxes` become text such as `[500,0,1000,500]`.

# %%
import json

(WORKDIR / "pictures").mkdir(parents=True, exist_ok=True)
with open(WORKDIR / "corpus.jsonl", "w") as file:
    for number, sample in enumerate(samples):
        sample.image.save(WORKDIR / f"pictures/{number}.png")
        question = [{"type": "image", "image": f"pictures/{number}.png"}, {"type": "text", "text": f"{sample.color}?"}]
        answer = [{"type": "boxes", "boxes": [sample.box]}]
        roles = {"user": question, "assistant": answer}
        messages = [{"role": role, "content": content} for role, content in roles.items()]
        file.write(json.dumps({"messages": messages}) + "\n")

# %% [markdown]
# ## Training
#
# An experiment is one config. The vocabulary is bytes and the special tokens of media. A row holds several
# conversations, of at most 256 tokens and 112 patches of 14 x 14 pixels; only answers are learnt.

# %%
from k2jax.config import defaults, resolve, source

config = defaults("sft", model="micro", vision="nano_vision")
config.model.vocab = 262  # bytes, two tokens around documents, four around images
config.model.layers = 2
config.model.vision.update({"layers": 2, "width": 64, "heads": 4, "ffn": 256, "grid": 4})
config.data.sources = {"pictures": source(kind="image_chat", path=str(WORKDIR / "corpus.jsonl"))}
config.data.tokenizer.update({"kind": "bytes", "media": True})
config.data.chat_format = "plain"
config.data.sequence_length = 256
config.data.images.patches = 112
config.data.held_out = 0.02
config.train.steps = STEPS
config.train.batch_size = 8
config.optimizer.learning_rate = 1e-2
config.optimizer.tower_rate = config.optimizer.projector_rate = 1.0
config.optimizer.schedule.decay_steps = STEPS // 2
config.router.bias_rate = 5e-2  # the report's 1e-3 would not balance anything in so few steps
config.router.bias_rate_final = 1e-3
config.checkpoint.every = STEPS
config.eval.every = max(1, STEPS // 5)
config.eval.rows = 8
experiment = resolve(config)

# %%
from k2jax.train import train

run = str(WORKDIR / "run")
train(experiment, run)

# %% [markdown]
# The loss of an answer's token. A model that knows how answers are written and guesses one of four cells loses
# ln 4 = 1.39 nats an answer, about 0.09 for each of its some sixteen tokens. Below that the model looks.

# %%
from IPython.display import Image as Picture
from IPython.display import display

display(Picture(f"{run}/plots/loss.png"))

# %% [markdown]
# ## Pictures that it has never seen
#
# The engine reads the pictures with their questions and answers greedily. The same questions are then asked about each
# other's pictures: what a model answers rightly there it knows without seeing.

# %%
from k2jax.evaluate.pictures import greedy_answers, load_picture_reader

reader = load_picture_reader(run, experiment, max_tokens=24, slots=32)


def ask(pictures, questions):
    """Answers to the questions of some samples about the pictures of others."""
    contents = [
        [{"type": "image", "image": shown.image}, {"type": "text", "text": f"{asked.color}?"}]
        for shown, asked in zip(pictures, questions, strict=True)
    ]
    return greedy_answers(reader, contents, 24)


def boxes_of(answers):
    """Boxes, None where an answer is none."""
    boxes = []
    for answer in answers:
        try:
            box = json.loads(answer)
        except json.JSONDecodeError:
            box = None
        boxes.append(box if isinstance(box, list) and len(box) == 4 else None)
    return boxes


answers = boxes_of(ask(unseen, unseen))
blind = boxes_of(ask(unseen[1:] + unseen[:1], unseen))
share = np.mean([answer == sample.box for answer, sample in zip(answers, unseen, strict=True)])
share_blind = np.mean([answer == sample.box for answer, sample in zip(blind, unseen, strict=True)])
print(f"right about {share:.0%} of {len(unseen)} unseen pictures, and about {share_blind:.0%} of exchanged ones")

# %%
figure, axes = plt.subplots(2, 6, figsize=(10, 4.2))
for axis, sample, answer in zip(axes.flat, unseen, answers, strict=False):
    right = answer == sample.box
    show(axis, sample, answer, "white" if right else "black")
    axis.set_title(f"{sample.color}: {'right' if right else 'wrong'}", fontsize=10)
figure.suptitle("Answers of the model")
figure.tight_layout()
plt.show()

# %%
figure, axis = plt.subplots(figsize=(6, 1.8))
bars = axis.barh(["exchanged pictures", "right pictures"], [share_blind, share], color=["0.7", "tab:blue"])
axis.bar_label(bars, fmt="{:.0%}", padding=3)
axis.axvline(1 / CELLS**2, color="0.4", linestyle=":")
axis.set(xlim=(0, 1.1), xlabel="right answers (dotted: guessing one of four cells)")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Where it looks
#
# `run_layers` takes the caller's attention. This one is written out: it computes the weights of every query, and
# returns them as side output. The token `[` begins an answer, and the first coordinate is predicted from it: below is
# what it attends to among the picture's four features, in the head that looks most at the right cell.

# %%
import jax
import jax.numpy as jnp

import k2jax
from k2jax.data.images.patch_packing import pack_chunks
from k2jax.inference.media_prompt import chat_prompt
from k2jax.model.decoder import place_features, run_layers
from k2jax.model.linear import from_heads, to_heads
from k2jax.model.mla import latent_and_rope_key, queries
from k2jax.model.rope import rotary_table, rotate_neighbours, softmax_scale
from k2jax.model.vision.tower import vision_features

model, params = k2jax.from_pretrained(run)


def attention_weights(tokens, packed):
    """Weights ``[layers, heads, tokens, tokens]`` of one conversation with one picture."""
    positions = jnp.arange(len(tokens))[None]
    rotary = rotary_table(positions, model.config)

    def attend(weights, x, layer):
        nope = model.config.mla.qk_nope_dim
        query = queries(weights, x, model.config)
        latent, shared_key = latent_and_rope_key(weights, x, rotary, model.config)
        key, value = jnp.split(to_heads(latent, weights["kv_b"]), [nope], axis=-1)
        cos, sin = (table[:, None] for table in rotary)
        logits = jnp.einsum("bhse,bhte->bhst", query[..., :nope], key)
        logits += jnp.einsum("bhse,bte->bhst", rotate_neighbours(query[..., nope:], cos, sin), shared_key)
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        chosen = jax.nn.softmax(jnp.where(causal, logits * softmax_scale(model.config), -jnp.inf), axis=-1)
        return from_heads(jnp.einsum("bhst,bhte->bhse", chosen, value), weights["o"]), chosen[0]

    place = np.cumsum(tokens == pad) - 1
    features = vision_features(params["vision"], packed.batch, model.config).features
    embedded = place_features(params["embed"][tokens][None], features, jnp.where(tokens == pad, place, -1)[None])
    _, stats = run_layers(params, embedded, jnp.ones((1, len(tokens)), bool), config=model.config, attend=attend)
    return stats.extra


tokenizer, pad = reader.tokenizer, reader.tokenizer.special_id("<|media_pad|>")
looks = []
for sample in unseen[:6]:
    content = [{"type": "image", "image": sample.image}, {"type": "text", "text": f"{sample.color}?"}]
    prompt = chat_prompt([{"role": "user", "content": content}], tokenizer, reader.processor, chat=reader.chat)
    tokens = np.array([*prompt.tokens, *tokenizer.encode("[")])
    chunks = reader.processor.prepare([{"role": "user", "content": content}]).chunks
    weights = attention_weights(tokens, pack_chunks(chunks, rows=1, length=112, patch=model.config.vision.patch))
    looks.append(np.asarray(weights[:, :, -1][..., tokens == pad]))  # of "[", which predicts the first coordinate
looks = np.array(looks)  # [samples, layers, heads, cells]
cells = [sample.box[1] * CELLS**2 // 1000 + sample.box[0] * CELLS // 1000 for sample in unseen[:6]]
right = np.mean([look[..., cell] for look, cell in zip(looks, cells, strict=True)], axis=0)
layer, head = np.unravel_index(right.argmax(), right.shape)
print(f"layer {layer}, head {head}: {right[layer, head]:.0%} of the attention of '[' is on the right cell")

# %%
figure, axes = plt.subplots(1, 6, figsize=(10, 2.2))
for axis, sample, look in zip(axes, unseen, looks[:, layer, head], strict=False):
    show(axis, sample, sample.box)
    heat = np.kron(look.reshape(CELLS, CELLS), np.ones((CELL, CELL)))
    axis.imshow(heat, cmap="gray", vmin=0, vmax=1, alpha=0.5)
    axis.set_title(f"{sample.color}?", fontsize=10)
figure.suptitle("Attention to the picture's four features, where the box is about to be written (bright: much)")
figure.tight_layout()
plt.show()
