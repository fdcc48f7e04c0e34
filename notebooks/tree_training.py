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
# # Tree training
#
# Episodes of agents share tokens. An agent that tries something, reads a result and continues in two ways has sampled
# two paths with one beginning. Packed path by path, the beginning is computed twice, forwards and backwards. Stored as
# a tree, it is computed once, and the gradient stays what it was (KAT-Coder-V2, section 3.3.2).
#
# This notebook lets the engine sample real trees, shows their attention mask and their rows, checks loss and gradients
# against training on every path, and measures the time. Most of its few minutes is compilation.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import os
from pathlib import Path
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None:
    source = ".." if os.path.exists("../setup.py") else "git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
ROUNDS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "5"))  # of the measurement
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/tree_training"))

# %%
from k2jax import runtime

runtime.prepare()

# %% [markdown]
# ## A model
#
# A Kimi-K2 architecture of 1.2 million parameters that reads bytes. It is not trained, and what it writes is noise. For
# the arithmetic of trees that makes no difference.

# %%
import jax

from k2jax.config import defaults, resolve
from k2jax.losses.registry import make_policy_loss
from k2jax.text import byte_tokenizer
from k2jax.text.plain_chat import PlainChat
from k2jax.train.program import Program

settings = defaults("rl", model="micro")
settings.data.tokenizer.kind = "bytes"
settings.data.chat_format = "plain"
settings.data.sequence_length = 512
settings.rl.rollout.update({"slots": 8, "max_length": 320})
config = resolve(settings)
tokenizer = byte_tokenizer()
chat = PlainChat(tokenizer)
program = Program(config, jax.devices()[:1], make_policy_loss(config.rl.loss))
params = program.init().params

# %% [markdown]
# ## Trees
#
# An agent gets a task and tries it three times. Each attempt is followed by an observation, from which it continues in
# two ways. That makes a tree of nine calls of the model and six paths. `generate(node, ...)` continues from any node:
# the engine reads the whole path to it, and the new tokens become a node below.

# %%
from k2jax.agents.episode import Rollout
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.task import Task
from k2jax.client import Sampling
from k2jax.inference import LockstepClient
from k2jax.rl.event_loop import EventLoop
from k2jax.rl.sync.weight_sync import WeightSync, colocated_engine
from k2jax.trajectory import Reward
from k2jax.trajectory.types import ROOT

QUESTION = (
    "Below is the log of a build that has failed. Say which file is at fault and how to mend it, and keep to one "
    "sentence. Log {}: cc -c main.c, cc -c list.c, ld: undefined symbol"
)
RESULT = "Built again with this change: fails."


async def explore(rollout):
    """Three attempts, each continued in two ways."""
    sampling = Sampling(max_tokens=24)
    question = rollout.observe(ROOT, rollout.task.instruction)
    for _ in range(3):
        attempt = await rollout.generate(question, sampling)
        result = rollout.observe(attempt, [{"role": "user", "content": RESULT}])
        for _ in range(2):
            await rollout.generate(result, sampling)
    rollout.trajectory.status = "finished"
    return rollout.trajectory


engine = colocated_engine(program, config.rl.rollout)
WeightSync(program, engine).push(params, 0)
client = LockstepClient(engine)
tasks = [
    Task(f"build-{number}", "builds", ({"role": "user", "content": QUESTION.format(number)},), "")
    for number in range(1, 5)
]
with EventLoop() as event_loop:
    rollouts = [
        explore(Rollout(task, client, chat, tokenizer, EpisodeKey("train", 1, number, 0)))
        for number, task in enumerate(tasks)
    ]
    trees = event_loop.run(client.gather(*rollouts))
for tree in trees:  # a reward, so that there is something to learn
    tree.reward = Reward(sum(node.tokens[node.mask].mean() for node in tree.nodes if node.mask.any()) / 1000)
    paths = sum(len(tree.path_tokens(leaf)) for leaf in tree.leaves())
    stored = sum(len(node.tokens) for node in tree.nodes)
    print(f"{tree.task}: {len(tree.nodes)} nodes, {len(tree.leaves())} paths, {stored} tokens, {paths} in paths")

# %% [markdown]
# ## Rows
#
# `pack` makes rows of 512 tokens, in one layout or the other. In the layout `tree` a row is a depth-first walk: each
# branch stores only what it does not share with the one before it. `shared_tokens="paths"` counts a shared token once
# in every path through it, as if each path were an episode of its own.

# %%
import numpy as np

from k2jax.config import PackingConfig
from k2jax.rl.packing.rows import pack
from k2jax.rl.packing.training_paths import TrainingSample

rewards = np.array([tree.reward.value for tree in trees])
samples = [TrainingSample(tree, advantage) for tree, advantage in zip(trees, rewards - rewards.mean(), strict=True)]
packed = {
    layout: pack(samples, config.data.sequence_length, PackingConfig(layout, "paths")) for layout in ("paths", "tree")
}
ratio = packed["paths"].stored_tokens / packed["tree"].stored_tokens
for layout, rows in packed.items():
    print(f"{layout}: {len(rows.rows)} rows, {rows.stored_tokens} tokens, {rows.padding:.1%} padding")
print(f"tokens in paths over tokens in trees: {ratio:.2f}")

# %% [markdown]
# Below each line is a row, and each color a node of one tree or another: the same colors come back where paths repeat
# their beginning.

# %%
import matplotlib.pyplot as plt


def shades(layout):
    """A number for every token of the rows: of its node, 0 where there is none."""
    image = np.zeros((len(packed[layout].rows), config.data.sequence_length))
    for place in packed[layout].places:
        tree = place.response.trajectory
        sizes = [len(tree.nodes[node].tokens) for node in place.path.nodes]
        image[place.row, place.index_T] = 1 + np.repeat(place.path.nodes, sizes) + 13 * tree.key[1]
    return image


heights = [len(packed[layout].rows) for layout in packed]
colors = plt.get_cmap("tab20b", 52).copy()
colors.set_bad("white")
figure, axes = plt.subplots(2, 1, figsize=(9, 4.2), height_ratios=heights, layout="constrained")
for axis, layout in zip(axes, packed, strict=True):
    image = shades(layout)
    axis.imshow(np.ma.masked_equal(image, 0), aspect="auto", cmap=colors, interpolation="nearest", vmin=1, vmax=53)
    axis.set(title=f"layout {layout}: {len(image)} rows", yticks=[], xticks=[])
axes[-1].set_xlabel("512 tokens")
plt.show()

# %% [markdown]
# ## The mask
#
# A token has to see its path and nothing else. One number per token says it all: `exit`, the index at which the
# token's subtree ends. Token $i$ sees token $j$ if $j \le i < \mathrm{exit}_j$. `positions` are depths in tokens, not
# indices in the row, and `parent` is the token that predicts: for the first token of a branch, the last one before the
# fork.

# %%
row = packed["tree"].rows[0]
index = np.arange(len(row.tokens))
visible = (index[None] <= index[:, None]) & (index[:, None] < row.exit[None])
sampled = row.targets.mask > 0
pixels = np.ones((*visible.shape, 3))
pixels[visible & ~sampled[None]] = (0.72, 0.76, 0.81)
pixels[visible & sampled[None]] = (0.17, 0.50, 0.64)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.4), width_ratios=[2, 1], layout="constrained")
left.imshow(pixels, interpolation="nearest")
left.set(title="row i sees column j", xlabel="j: grey observed, blue sampled", ylabel="i")
right.plot(row.positions, index, label="position", color="#2f7fa3")
right.plot(row.exit, index, label="exit", color="#d98324")
right.invert_yaxis()
right.set(title="what the row stores", yticks=[])
right.legend()
plt.show()

# %% [markdown]
# A column is high where many paths share its token: the task is seen by all six, an attempt by two. What a row of the
# picture sees is one path, as if it stood alone.

# %% [markdown]
# ## The same loss and gradients
#
# The weights are moved a little first, so that ratios leave 1, and the band is narrow. Then loss and gradients of
# all weights are computed over both layouts, for K2.5's objective over tokens and for GSPO's over turns, where
# $\min(rA, \operatorname{clip}(r)A)$ needs each response's own advantage.

# %%
import dataclasses
import functools

import jax.numpy as jnp

from k2jax.batch import stack_rows
from k2jax.train.step import make_gradient_step

keys = iter(jax.random.split(jax.random.key(1), 200))
moved = jax.tree.map(lambda leaf: leaf + 0.05 * leaf.std() * jax.random.normal(next(keys), leaf.shape), params)


def gradients(name, layout):
    """A function that computes loss and gradients of all rows of a layout."""
    objective = dataclasses.replace(config.rl.loss, name=name, ratio_low=0.99, ratio_high=1.01, aggregation="token")
    loss = make_policy_loss(objective)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], stack_rows(packed[layout].rows))
    step = jax.jit(make_gradient_step(config, program.layout, loss))
    return functools.partial(step, moved, batch, loss.denominators(batch.targets))


computed = {layout: gradients("k2.5", layout) for layout in packed}
for name in ("k2.5", "kat"):
    functions = computed if name == "k2.5" else {layout: gradients(name, layout) for layout in packed}
    by_path, by_tree = (functions[layout]() for layout in packed)
    leaves = zip(jax.tree.leaves(by_path.grads), jax.tree.leaves(by_tree.grads), strict=True)
    difference = max(float(jnp.linalg.norm(a - b) / (jnp.linalg.norm(a) + 1e-30)) for a, b in leaves)
    clipped = float(by_path.shares.metrics["policy/clipped"])
    print(f"{name}: loss {float(by_path.shares.total):+.6f} by paths, {float(by_tree.shares.total):+.6f} by trees, ")
    print(f"      {clipped:.1%} clipped; largest relative difference of a weight's gradient {difference:.1e}")
    assert difference < 1e-4

# %% [markdown]
# What is left is rounding in float32, in which sums of another order differ.

# %% [markdown]
# ## The time
#
# Both layouts in turn, several rounds, the median of each. At best the speed-up is the ratio of tokens. Attention falls
# by less, since a token sees its whole path either way, and rows that are not full cost like full ones.

# %%
from k2jax.bench.timing import interleaved

seconds = interleaved(computed, ROUNDS, warmup=1)
speed_up = seconds["paths"] / seconds["tree"]
print({layout: f"{value:.3f} s" for layout, value in seconds.items()}, f"speed-up {speed_up:.2f} of {ratio:.2f}")
figure, axis = plt.subplots(figsize=(7, 1.9), layout="constrained")
axis.barh(list(seconds), list(seconds.values()), color=["#b9c2cd", "#2f7fa3"])
axis.axvline(
    seconds["paths"] / ratio, color="#c0392b", linestyle=":", label="time of the paths over the ratio of tokens"
)
axis.set(xlabel="loss and gradients [s], median")
axis.legend(loc="lower right", fontsize=8)
plt.show()

# %% [markdown]
# ## The page
#
# The page of trajectories shows the same tree with its tokens. A node is as wide as it has tokens, and as high as there
# are paths that share it. `python -m k2jax.trajectories` writes such a page for an iteration of a run.

# %%
from html import escape

from IPython.display import HTML, display

from k2jax.agents.viewer.viewer import write_page
from k2jax.trajectories import decoder

WORKDIR.mkdir(parents=True, exist_ok=True)
page = write_page(WORKDIR / "trees.html", trees, decoder(tokenizer), title="Four trees")
inside = escape(page.read_text().replace("<head>", '<head><base href="about:srcdoc">'))  # links stay in the frame
display(HTML(f'<div><iframe srcdoc="{inside}" width="100%" height="640"></iframe></div>'))

# %% [markdown]
# ## Further
#
# - `config.rl.packing.layout = "tree"` turns it on in a run; samples of one prompt share at least the prompt.
# - `docs/tree_training.md` says what a shared token counts in each objective, and how trees larger than a row are cut.
# - `python -m k2jax.bench tree` measures it for trees of several shapes, and for a whole iteration.
