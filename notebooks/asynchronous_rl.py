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
# # Reinforcement learning that does not wait
#
# The episodes of an agent wait for tools and sandboxes, and each waits for a different time. A loop that waits for all
# episodes of an iteration waits for the slowest of them. This notebook runs the same tasks with both samplers of
# k2jax, draws who waited for what, and looks at what the quicker one costs: tokens that older weights chose, and groups
# that others overtook. [docs/asynchronous_rl.md](../docs/asynchronous_rl.md) says how it works.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None:
    in_checkout = os.path.exists("../setup.py")
    package = ".." if in_checkout else "k2jax @ git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "5"))  # iterations of each run; fewer for a quick look
TRACED = max(1, STEPS - 2)  # the iteration that is drawn
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/asynchronous")).absolute()

# %%
from k2jax import runtime

runtime.prepare()

# %% [markdown]
# ## Tasks whose environment takes its time
#
# A package of one file: prompts of two letters, an environment that takes an exponentially drawn time to open, as a
# container or a repository does, and a verifier that an untrained model earns a part of. What is drawn depends on the
# episode's seed alone, so that both runs meet the same times.

# %%
PACKAGE = '''
import asyncio
import itertools

import numpy as np

from k2jax.agents import Environment, Observation, Step, Task
from k2jax.trajectory import Reward

SECONDS = 1.5  # in the mean


class Waits:
    """The dataset; the splits have other letters."""

    def __init__(self, split: str = "train"):
        self._letters = "abcdefgh" if split == "train" else "wxyz"

    def load(self):
        for pair in itertools.product(self._letters, repeat=2):
            name = "".join(pair)
            yield Task(name, "waits", ({"role": "user", "content": name},), "low_bytes", environment="waits")


class Waiting(Environment):
    """One answer, in an environment that opens slowly."""

    async def reset(self, task, seed):
        await asyncio.sleep(SECONDS * np.random.default_rng(seed).exponential())
        return Observation(task.instruction)

    async def step(self, action):
        return Step(Observation(), terminated=True)


def low_bytes(task, answer):
    """The share of the answer's bytes that are ASCII."""
    raw = answer.encode()
    return Reward(sum(byte < 128 for byte in raw) / max(1, len(raw)))
'''
WORKDIR.mkdir(parents=True, exist_ok=True)
(WORKDIR / "waits.py").write_text(PACKAGE)
sys.path.insert(0, str(WORKDIR))

from k2jax.agents.registry import datasets, environments, verifiers

datasets.add("waits", "waits:Waits")
environments.add("waits", "waits:Waiting")
verifiers.add("low_bytes", "waits:low_bytes")

# %% [markdown]
# ## The config
#
# A two-layer K2 of bytes, small enough that its engine is not what takes time. `rl.rollout.sampler` is the only
# difference between the two runs; `trace` names an iteration whose course is written down.

# %%
from k2jax.config import defaults, resolve, task


def config_of(sampler):
    """The experiment with one of the samplers."""
    config = defaults("rl")
    config.model.update({"layers": 2, "d_model": 32, "heads": 2, "dense_ffn": 48, "vocab": 258})
    config.model.mla.update({"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8})
    config.model.moe.update({"expert_ffn": 16, "experts": 4, "active_experts": 2})
    config.data.tokenizer.kind = "bytes"
    config.data.update({"chat_format": "plain", "sequence_length": 192})
    del config.rl.tasks.characters
    config.rl.tasks.waits = task(dataset="waits", max_tokens=8)
    config.rl.rollout.update({"prompts": 6, "samples": 4, "slots": 24, "max_length": 160, "sampler": sampler})
    if sampler == "workers":
        config.rl.rollout.trace = TRACED
    config.rl.update({"updates": 1, "eval_prompts": 0})
    config.train.update({"steps": STEPS, "batch_size": 4})
    config.log.tensorboard = False
    return resolve(config)


# %%
from k2jax.report.metrics import read_metrics
from k2jax.rl.loop import train

records = {}
for sampler in ("lockstep", "workers"):
    shutil.rmtree(WORKDIR / sampler, ignore_errors=True)
    assert train(config_of(sampler), WORKDIR / sampler) == 0
    records[sampler] = [record for record in read_metrics(WORKDIR / sampler) if "reward" in record]

# %% [markdown]
# ## Seconds of rollouts
#
# The first iteration of a run compiles its programs. Behind it an iteration in lockstep takes as long as the longest of
# 24 waits; without waiting it ends when six groups are complete, and others are half-way by then.

# %%
from k2jax.report.table import markdown_table

shown = ("rollout_seconds", "stale_tokens")
rows = [
    (sampler, str(record["step"]), *(f"{record[name]:.2f}" for name in shown))
    for sampler, of_run in records.items()
    for record in of_run
]
print(markdown_table(("sampler", "iteration", *shown), rows))
later = {name: [record["rollout_seconds"] for record in of_run[1:]] for name, of_run in records.items()}
if STEPS > 1:
    mean = {name: sum(values) / len(values) for name, values in later.items()}
    print(f"lockstep takes {mean['lockstep'] / mean['workers']:.1f} times as long")

# %% [markdown]
# ## Who waited for what
#
# The trace of an iteration opens in [Perfetto](https://ui.perfetto.dev). Here are its episodes, a bar each, with the
# time in which the episode waited for its environment, and the phases of the iteration behind them. Some episodes were
# under way when the iteration began, and some still are when it ends.

# %%
import json

import matplotlib.pyplot as plt

events = json.loads((WORKDIR / "workers" / f"trace-{TRACED}.json").read_text())["traceEvents"]
spans = [event for event in events if event["ph"] == "X"]
episodes = sorted((event for event in spans if event["name"] == "episode"), key=lambda event: event["ts"])
phases = [event for event in spans if event["name"] != "episode"]
figure, axes = plt.subplots(figsize=(9, 4.5))
for row, event in enumerate(episodes):
    begin, seconds = event["ts"] / 1e6, event["dur"] / 1e6
    axes.barh(row, seconds, left=begin, color="#7fa3ad", height=0.8)
    axes.barh(row, min(seconds, event["args"].get("environment", 0.0)), left=begin, color="#d9c089", height=0.8)
colors = {"generate": "#e3eef1", "hold": "#f5e6e0", "train": "#e6f0dd", "push": "#efe3f1"}
for event in phases:
    span = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
    axes.axvspan(*span, color=colors.get(event["name"], "white"), zorder=0, label=event["name"])
axes.legend(loc="lower right", title="phases")
axes.set(xlabel="seconds of the iteration", ylabel="episodes", ylim=(-1, len(episodes)))
axes.set_title("Episodes (bars) and of each the time in its environment (light)")
plt.show()

# %% [markdown]
# ## What it costs
#
# `stale_tokens` in the table above is the share of tokens that older weights than the newest chose: their
# log-probabilities under those weights are recorded, and losses correct by them. `window/late` counts groups that an
# earlier iteration has overtaken, `window/left_behind` older prompts that this one has; `rl.rollout.look_ahead` bounds
# both.

# %%
names = ("window/running", "window/late", "window/left_behind", "engine_busy", "wait/engine", "wait/environment")
rows = [(str(record["step"]), *(f"{record[name]:.2f}" for name in names)) for record in records["workers"]]
print(markdown_table(("iteration", *names), rows))

# %% [markdown]
# ## Where to go from here
#
# - `experiments/rl/terminal_workers_nano.py`: an agent in a terminal, its episodes in two worker processes.
# - `rl.rollout.workers=N` runs episodes, tools and verifiers in processes; nothing else changes.
# - `python -m k2jax.bench asynchronous` measures both samplers with episodes of eight turns.
