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
# # From raw text to a batch
#
# What a training step reads is a pure function of the corpus, the seed and the number of the step. This notebook goes
# the way from files to a batch: documents and what is left out of them, tokens on disk, rows, their order, and what a
# step sees.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys
import sysconfig

if importlib.util.find_spec("k2jax") is None:
    SOURCE = ".." if os.path.exists("../setup.py") else "git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", SOURCE], check=True)

WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/corpus_to_batch"))
WORKDIR.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## Documents
#
# Two sources: code, one file of Python's standard library each, and its documentation strings as JSON lines. Three of
# the lines are not usable: no JSON, no text, and not UTF-8.

# %%
import ast

library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:120]
folder = WORKDIR / "code"
folder.mkdir(exist_ok=True)
strings = []
for path in library:
    text = path.read_text(encoding="utf-8", errors="replace")
    (folder / path.name).write_text(text, encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (found := ast.get_docstring(node)):
            strings.append(found)
lines = [json.dumps({"text": text}).encode() for text in strings]
lines[10:10] = [b"{half a record", b'{"txt": "another field"}', b'{"text": "\xff"}']
(WORKDIR / "strings.jsonl").write_bytes(b"\n".join(lines) + b"\n")
print(f"{len(library)} files of code, {len(strings):,} documentation strings")

# %% [markdown]
# ## Tokens on disk
#
# `prepare_data` reads every source once, in a stream, and keeps its tokens in a folder that is named by a hash of all
# that decides its content. It says what it could not use. A document is held out by a hash of its text, so copies of it
# are on one side.

# %%
from k2jax.config.schema import DataConfig, SourceConfig, TokenizerConfig
from k2jax.data import prepare_data

LENGTH, BATCH, STEPS = 512, 8, 400
config = DataConfig(
    sources={
        "code": SourceConfig(kind="text", path=str(folder), weight=3.0),
        "strings": SourceConfig(kind="jsonl", path=str(WORKDIR / "strings.jsonl"), weight=1.0),
    },
    cache_dir=str(WORKDIR / "cache"),
    tokenizer=TokenizerConfig(vocab=1024),
    sequence_length=LENGTH,
    held_out=0.05,
)
data = prepare_data(config, batch_size=BATCH, seed=0, steps=STEPS, log=print)

# %%
for name, manifest in data.manifests.items():
    train, held_out = manifest["splits"]["train"], manifest["splits"]["held_out"]
    print(f"{name}: {train['documents']:,} documents with {train['tokens']:,} tokens, {held_out['documents']} held out")
    for line in manifest["skipped"]["first"]:
        print("  skipped:", line)

# %% [markdown]
# ## Lengths
#
# Documentation strings are short, files of code long: a row of 512 tokens holds several of the former, and a part of
# one of the latter.

# %%
import matplotlib.pyplot as plt
import numpy as np

from k2jax.data.kept_corpora import kept_corpora
from k2jax.data.shards import open_shards

kept, _ = kept_corpora(config.cache_dir)
streams = {Path(corpus.path).stem: open_shards(corpus.folder).train for corpus in kept}
figure, axes = plt.subplots(figsize=(7, 3))
bins = np.geomspace(4, 200_000, 60)
for name, stream in streams.items():
    lengths = np.diff(stream.offsets)
    axes.hist(lengths, bins, weights=lengths / lengths.sum(), alpha=0.6, label=name)
axes.axvline(LENGTH, color="black", linestyle=":", label="a row")
axes.set(xscale="log", xlabel="tokens of a document", ylabel="share of the source's tokens")
axes.legend()
plt.show()

# %% [markdown]
# ## Rows
#
# A row is cut from the stream of documents. A token may attend to those before it in its own document: `exit` says for
# each token where its document ends, and this one vector is the whole mask. Where a document goes on in the next row,
# that row begins with its last token as context, which is no target there.

# %%
batch = data.loader.batch(0)
figure, axes = plt.subplots(figsize=(7, 2.2))
axes.imshow(batch.exit % 97, aspect="auto", cmap="tab20", interpolation="nearest")
axes.set(xlabel="token", ylabel="row", title="documents in the rows of the first step, a colour each")
plt.show()
sources = data.loader.sources(0)
print("sources of the rows:", sources)
print("targets of each row:", (batch.targets["weights"] > 0).sum(1).tolist(), "of", LENGTH)

# %% [markdown]
# ## Order
#
# Which source a row is of is a closed form of its number, and which of its rows a permutation that is computed place by
# place: nothing is held in memory, so 3.8 billion rows have an order as quickly as a hundred. A permutation must not
# leave neighbours together. Here are the places of the first 2,000 rows that are drawn of a source as large as K2's, by
# grain's shuffle of four rounds, and by the order that k2jax has for sources of this size.

# %%
import grain

from k2jax.data.permutation import shuffled

ROWS = 3_800_000_000
orders = {
    "grain's shuffle": grain.MapDataset.range(ROWS).shuffle(seed=7),
    "k2jax, of large sources": shuffled(range(ROWS), 7),
}
figure, panels = plt.subplots(1, 2, figsize=(7, 3.4), sharey=True)
for axes, (name, order) in zip(panels, orders.items(), strict=True):
    places = np.array([order[draw] for draw in range(2000)]) / ROWS
    axes.plot(places[:-1], places[1:], ".", markersize=2)
    axes.set(title=f"{name}: {np.corrcoef(places[:-1], places[1:])[0, 1]:+.2f}", xlabel="place of a row")
panels[0].set_ylabel("place of the next row")
plt.show()

# %% [markdown]
# ## What a step sees
#
# The same is printed by `python -m k2jax.data show --config=… --batch=STEP`: pieces of documents with their places in
# the row, and how many of their tokens are trained on.

# %%
from k2jax.data.batch_preview import pieces_of, use_of

STEP = 250
for piece in list(pieces_of(data, STEP, range(4)))[:12]:
    text = repr(piece.text[:50])
    print(f"row {piece.row}  {piece.source:8} {piece.begin:4} to {piece.end:<4} {piece.trained:4} trained  {text}")

# %% [markdown]
# And by then the run has seen of every source:

# %%
for use in use_of(data, STEP):
    print(f"{use.source:8} {use.passes:.2f} passes, {use.tokens:,} tokens; {use.rows} rows of this step")

# %% [markdown]
# ## The same batch, whoever reads it
#
# A step is a function of its number: a run that resumes reads nothing of what came before, and four hosts together read
# what one would.

# %%
again = prepare_data(config, batch_size=BATCH, seed=0, steps=STEPS).loader.batch(STEP - 1)
whole = data.loader.batch(STEP - 1)
parts = [
    prepare_data(config, batch_size=BATCH, seed=0, steps=STEPS, local_rows=range(2 * host, 2 * host + 2))
    for host in range(4)
]
joined = np.concatenate([part.loader.batch(STEP - 1).tokens for part in parts])
print("a resume:", np.array_equal(again.tokens, whole.tokens), " four hosts:", np.array_equal(joined, whole.tokens))
assert np.array_equal(again.tokens, whole.tokens) and np.array_equal(joined, whole.tokens)
