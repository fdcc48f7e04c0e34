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
# # An orchestrator and its sub-agents
#
# The agent swarm of Kimi K2.5 (section 3) is one agent with two tools more: it creates sub-agents, and assigns tasks to
# them. The sub-agents of one answer work at a time, so that an episode may have many steps and still be short. When to
# do so is learnt by reinforcement learning: the orchestrator is trained, and its sub-agents are frozen.
#
# This notebook plays one question in four ways, counts and draws their steps, looks at the rewards that keep an
# orchestrator from working alone, and trains a very small one for a few iterations. [docs/swarm.md](../docs/swarm.md)
# says how it works.

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
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "6"))  # iterations of reinforcement learning; fewer for a quick look
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/swarm-notebook")).absolute()

# %%
import contextlib

from k2jax import runtime
from k2jax.rl.event_loop import EventLoop

runtime.prepare()
loop = contextlib.ExitStack().enter_context(EventLoop())  # the notebook's own thread runs an event loop already

# %% [markdown]
# ## A wide question
#
# A store has a letter for each key; behind it lies a number, or the next key. `wide4` asks for four numbers, each two or
# three calls away. None of them depends on another.

# %%
from k2jax.agents.dataset import load_tasks
from k2jax.tasks.lookups.dataset import ANSWERS, hops_of

question = load_tasks("lookups", ("kinds=wide4", "count=20"))[0]
keys, store = list(question.metadata[ANSWERS]), question.metadata["store"]
print("question", question.instruction[0]["content"])
for key in keys:
    hops, number = hops_of(store, key)
    print("  ", " → ".join([*hops, number]))

# %% [markdown]
# ## The two tools
#
# The report's tools are `create_subagent(name, system_prompt)` and `assign_task(agent, prompt)`. Small models have a short
# form of both: a line `!n x` creates the sub-agent `x`, and `!a x task` gives it a task. Several lines are calls of one
# answer.

# %%
from k2jax.agents.swarm.forms import TOOLS

for form in ("full", "compact"):
    for tool in TOOLS[form]:
        function = tool["function"]
        arguments = ", ".join(function["parameters"]["properties"])
        print(f"{form:>8}  {function['name']}({arguments}): {function['description'].splitlines()[0]}")

# %% [markdown]
# ## Four episodes of one question
#
# A script takes the model's place: in all four episodes a sub-agent looks up what it is asked for, one key after another,
# and says the number. The orchestrator
#
# - works **alone**, as its sub-agents do,
# - assigns **two by two**: one answer with two sub-agents, and when both have ended another one,
# - assigns **all at once**,
# - or creates four sub-agents, which get **no task**, and works alone.

# %%
import dataclasses
import re

from k2jax.text import byte_tokenizer, configured_chat

tokenizer = byte_tokenizer()
chat = configured_chat(tokenizer, "compact")


def look_up(keys, shown):
    """Calls for one key after another, then the numbers."""
    numbers = [text for text in shown if text.isdecimal()]
    if len(numbers) == len(keys):
        return ",".join(numbers)
    at_hop = shown and not shown[-1].isdecimal() and shown[-1] != "."
    return f"!get {shown[-1] if at_hop else keys[len(numbers)]}"


def assigning(at_a_time):
    """A script that gives so many keys to sub-agents in one answer."""

    def act(keys, shown):
        numbers = [text for text in shown if text != "."]
        if len(numbers) == len(keys):
            return ",".join(numbers)
        first = len(numbers)
        names = range(first + 1, 1 + min(len(keys), first + at_a_time))
        return "\n".join(f"!n {name}\n!a {name} {keys[name - 1]}=" for name in names)

    return act


def idle(keys, shown):
    return look_up(keys, shown) if shown else "\n".join(f"!n {name}" for name in range(1, 1 + len(keys)))


SCRIPTS = {"alone": look_up, "two by two": assigning(2), "all at once": assigning(4), "no task": idle}

# %% [markdown]
# `run_episode` runs an agent with a client, here one that asks the script, and a `Spawner` runs the sub-agents, which
# are episodes as well.

# %%
from k2jax.agents.environments.tools import ToolEnvironment
from k2jax.agents.episode import run_episode
from k2jax.agents.episode_key import EpisodeKey
from k2jax.agents.spawning import Spawner
from k2jax.client import Sampling, ScriptedClient


def play(script):
    """The episode of a scripted orchestrator; its sub-agents look up their keys."""

    def reply(prompt, sampling):
        text = "".join({0: "<", 1: ">"}.get(token) or tokenizer.decode([token]) for token in prompt)
        asked, *shown = [part for part in re.findall("<([^<>]*)>?", text) if "!" not in part and part]
        keys = asked.removesuffix("=")
        said = (script if len(keys) > 1 else look_up)(keys, shown)
        return [*tokenizer.encode(said), chat.end]

    async def run(task, spawner):
        options = {"key": EpisodeKey("train", 1, 0, 0), "seed": 0, "sampling": Sampling(max_tokens=64)}
        client, environment = ScriptedClient(reply), ToolEnvironment()
        return await run_episode(task, client, chat, tokenizer, environment, **options, spawner=spawner)

    task = dataclasses.replace(question, tools=("store", "swarm form=compact steps=5"))
    return loop.run(run(task, Spawner(lambda spawned: run(spawned.task, spawned.spawner))))


episodes = {name: play(script) for name, script in SCRIPTS.items()}
for node in episodes["two by two"].nodes:
    print(f"{node.message['role']:>10}  {tokenizer.decode(node.tokens.tolist())!r}")

# %% [markdown]
# ## Critical steps
#
# A step is a call of a tool, or an answer without one; the calls of one answer that create sub-agents or assign tasks are
# one step together. **Critical steps** count for each answer its own step and those of the longest sub-agent that it
# started: how long the episode takes if machines are free. **Total steps** count all agents: what it costs.
# Parallelism is their ratio. `swarm_record` reads all of it off a trajectory.

# %%
from k2jax.report.table import markdown_table
from k2jax.trajectory.swarm import swarm_record

COUNTS = ("created", "assigned", "finished", "peak", "total_steps", "critical_steps")
records = {name: swarm_record(episode) for name, episode in episodes.items()}
rows = [
    (name, *(str(getattr(record, count)) for count in COUNTS), f"{record.parallelism:.2f}")
    for name, record in records.items()
]
print(markdown_table(("episode", *COUNTS, "parallelism"), rows))

# %% [markdown]
# ## The time line of an episode
#
# The page of an episode (`python -m k2jax.trajectories WORKDIR`) draws its agents over the steps of the critical path: a
# bar is an agent at work, a thin line one that waits, and the critical path is outlined.

# %%
from html import escape

from IPython.display import HTML, display

from k2jax.agents.viewer.markup import document
from k2jax.agents.viewer.page_style import STYLE
from k2jax.agents.viewer.swarm_schedule import swarm_schedule
from k2jax.agents.viewer.swarm_section import swarm_card


def show_time_line(episode, height):
    """Draws the agents of an episode, as its page does."""
    page = document("agents", STYLE, swarm_card(swarm_schedule(episode), lambda agent: "#"))
    display(HTML(f'<div><iframe srcdoc="{escape(page)}" width="100%" height="{height}"></iframe></div>'))


show_time_line(episodes["two by two"], 380)

# %%
show_time_line(episodes["all at once"], 380)

# %% [markdown]
# ## PARL
#
# Serial work gives the same answer, and an orchestrator that begins with it may never leave it. PARL adds two terms to
# the reward, and takes them away again:
#
# $$r = \lambda_1(k)\, r_\text{parallel} + \lambda_2(k)\, r_\text{finish} + r_\text{perf}.$$
#
# $r_\text{parallel}$ is the number of sub-agents that got a task, over `rl.parl.agents` and at most 1; the report leaves
# the form open, and this one is ours. $r_\text{finish}$ is the share of assigned tasks that were finished: without it,
# agents that are started to be counted would pay. $r_\text{perf}$ is what the verifier says. An episode with sub-agents
# that get no task earns nothing by them.

# %%
from k2jax.config import defaults, resolve
from k2jax.rl.methods.swarm_metrics import finish_value, parallel_value
from k2jax.tasks.lookups.dataset import lookups

LAMBDA = 0.3  # both weights at the beginning
config = defaults("rl")
config.rl.parl.update({"parallel": LAMBDA, "finish": LAMBDA, "agents": 4, "decay": 0.6})
parl = resolve(config).rl.parl
rows = []
for name, record in records.items():
    parallel, finish = parallel_value(record, parl), finish_value(record)
    right = lookups(question, episodes[name].answer).value
    rows.append((name, *(f"{value:.2f}" for value in (parallel, finish, right, LAMBDA * (parallel + finish) + right))))
print(markdown_table(("episode", "r_parallel", "r_finish", "r_perf", "r at first"), rows))

# %% [markdown]
# The weights stay for the share `hold` of a run, and until an iteration has the parallelism `hold_until` where that is
# set; then they fall over the share `decay` to exactly 0, so that in the end $r_\text{perf}$ alone is maximised.

# %%
import matplotlib.pyplot as plt

from k2jax.rl.methods.parl import annealing

LONG = 60  # iterations
schedules = {
    "decay 0.6": ({"decay": 0.6}, None),
    "decay 0.6, cosine": ({"decay": 0.6, "shape": "cosine"}, None),
    "hold 0.3, decay 0.4": ({"hold": 0.3, "decay": 0.4}, None),
    "decay 0.4, hold_until, which is reached in iteration 30": ({"decay": 0.4, "hold_until": 2.0}, 30),
}
figure, axes = plt.subplots(figsize=(9, 3.4))
for label, (choices, reached) in schedules.items():
    choices = {"hold": 0.0, "shape": "linear", "hold_until": 0.0, **choices}
    weights = [LAMBDA * annealing(dataclasses.replace(parl, **choices), k, LONG, reached) for k in range(LONG)]
    axes.step(range(1, 1 + LONG), weights, where="mid", label=label)
axes.set(xlabel="iteration", ylabel="weight of a term", title="Weights of both terms", ylim=(0, 1.1 * LAMBDA))
axes.legend(frameon=False)
plt.show()
