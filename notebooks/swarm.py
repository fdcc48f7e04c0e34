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
# A store has a letter for each key; behind it lies a number, or the next key. `wide4` asks for four numbers, each two
# or three calls away. None of them depends on another.

# %%
from k2jax.agents.dataset import load_tasks
from k2jax.tasks.lookups.dataset import KEYS, hops_of

question = load_tasks("lookups", ("kinds=wide4", "count=20"))[0]
keys, store = question.metadata[KEYS], question.metadata["store"]
print("question", question.instruction[0]["content"])
for key in keys:
    hops, number = hops_of(store, key)
    print("  ", " → ".join([*hops, number]))

# %% [markdown]
# ## The two tools
#
# The report's tools are `create_subagent(name, system_prompt)` and `assign_task(agent, prompt)`. Small models have a
# short form of both: a line `!n x` creates the sub-agent `x`, and `!a x task` gives it a task. Several lines are calls
# of one answer.

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
# A script takes the model's place: in all four episodes a sub-agent looks up what it is asked for, one key after
# another, and says the number with its key. The orchestrator
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
    """Calls for one key after another, then the keys with their numbers."""
    numbers = [text for text in shown if text.isdecimal()]
    if len(numbers) == len(keys):
        return " ".join(map("=".join, zip(keys, numbers, strict=True)))
    at_hop = shown and not shown[-1].isdecimal() and shown[-1] != "."
    return f"!get {shown[-1] if at_hop else keys[len(numbers)]}"


def assigning(at_a_time):
    """A script that gives so many keys to sub-agents in one answer."""

    def act(keys, shown):
        pairs = [text for text in shown if text != "."]
        if len(pairs) == len(keys):
            return " ".join(pairs)
        first = len(pairs)
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
# A step is a call of a tool, or an answer without one; the calls of one answer that create sub-agents or assign tasks
# are one step together. **Critical steps** count for each answer its own step and those of the longest sub-agent that
# it started: how long the episode takes if machines are free. **Total steps** count all agents: what it costs.
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
# The page of an episode (`python -m k2jax.trajectories WORKDIR`) draws its agents over the steps of the critical path:
# a bar is an agent at work, a thin line one that waits, and the critical path is outlined.

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


show_time_line(episodes["two by two"], 320)

# %%
show_time_line(episodes["all at once"], 320)

# %% [markdown]
# ## PARL
#
# Serial work gives the same answer, and an orchestrator that begins with it may never leave it. PARL adds two terms to
# the reward, and takes them away again:
#
# $$r = \lambda_1(k)\, r_\text{parallel} + \lambda_2(k)\, r_\text{finish} + r_\text{perf}.$$
#
# $r_\text{parallel}$ is the number of sub-agents that got a task, over `rl.parl.agents` and at most 1; the report
# leaves the form open, and this one is ours. $r_\text{finish}$ is the share of assigned tasks that were finished:
# without it, agents that are started to be counted would pay. $r_\text{perf}$ is what the verifier says. An episode
# with sub-agents that get no task earns nothing by them.

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
    "hold_until, reached in 30, decay 0.4": ({"decay": 0.4, "hold_until": 2.0}, 30),
}
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
for label, (choices, reached) in schedules.items():
    choices = {"hold": 0.0, "shape": "linear", "hold_until": 0.0, **choices}
    weights = [LAMBDA * annealing(dataclasses.replace(parl, **choices), k, LONG, reached) for k in range(LONG)]
    axes.step(range(1, 1 + LONG), weights, where="mid", label=label)
axes.set(xlabel="iteration", ylabel="weight of a term", title="Weights of both terms", ylim=(0, 1.1 * LAMBDA))
axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## A short start
#
# Reinforcement learning needs an orchestrator that now and then makes a call that works. Here a model of 0.2 million
# parameters reads demonstrations of two and three keys, of which the teacher gives an eighth to sub-agents, and of
# single keys, as sub-agents are asked them. It learns the form of calls, and hardly anything of what they return: right
# numbers take the start of the real experiment, which is larger and reads twenty times as much.

# %%
import json

from k2jax.config import source as data_source
from k2jax.tasks.lookups.demonstrations import lookup_demonstrations
from k2jax.train import train

WORKDIR.mkdir(parents=True, exist_ok=True)
sources = {}
for name, kinds, count in (("wide", "wide2+wide3", 6000), ("single", "wide1", 2000)):
    options = {"parallel": 0.12, "partial": 0.03, "idle": 0.05}
    lines = lookup_demonstrations(load_tasks("lookups", (f"kinds={kinds}", f"count={count}")), **options)
    (WORKDIR / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sources[name] = data_source(kind="chat", path=str(WORKDIR / f"{name}.jsonl"), weight=3.0 if name == "wide" else 1.0)


# %%
def small(stage):
    """What both trainings share."""
    config = defaults(stage, model="micro")
    config.model.update({"layers": 2, "d_model": 64, "dense_ffn": 192})
    config.model.moe.update({"experts": 8, "active_experts": 2})
    config.data.tokenizer.kind = "bytes"
    config.data.update({"chat_format": "compact", "sequence_length": 144})
    config.train.batch_size = 16
    config.log.plots_every = 1000
    config.log.tensorboard = False
    return config


config = small("sft")
config.data.sources = sources
config.train.steps = 30 * STEPS
config.optimizer.learning_rate = 1e-2
config.router.bias_rate = 5e-2
config.router.bias_rate_final = 1e-3
config.eval.update({"every": config.train.steps, "sample_tokens": 0, "rows": 32})
assert train(resolve(config), WORKDIR / "start") == 0

# %% [markdown]
# ## Some iterations
#
# The orchestrator begins with the start, and the role `helper`, which answers as its sub-agents, stays with it. The
# budget is critical steps: work that is given away costs one sub-agent's steps, however many there are. Sub-agents of
# five steps that have not ended by then do not count as finished. The weights stay, since six iterations are too few to
# lower them.
#
# In one run an episode had 0.2 assignments in the first iteration and 1.3 in the sixth, and parallelism rose from 1.04
# to 1.31. The share of right keys stayed below 0.1: this start copies no numbers.

# %%
from k2jax.config import role
from k2jax.config import task as task_class
from k2jax.rl.loop import train as train_by_rewards

config = small("rl")
config.init_from = str(WORKDIR / "start")
config.rl.roles.helper = role(checkpoint=config.init_from, max_tokens=16, temperature=0.0, slots=64)
config.rl.tasks = {
    "lookups": task_class(
        dataset="lookups",
        options=("kinds=wide2+wide3", "count=2000"),
        max_tokens=48,
        critical_steps=10,
        tools=("store", "swarm form=compact steps=5 most=8 role=helper"),
    )
}
config.rl.rollout.update({"prompts": 16, "samples": 8, "slots": 64, "max_length": 144})
config.rl.update({"updates": 2, "skip_flat_groups": True, "eval_prompts": 0, "keep_trajectories": STEPS})
config.rl.parl.update({"parallel": LAMBDA, "finish": LAMBDA, "agents": 3, "decay": 0.0})
config.train.steps = STEPS
config.optimizer.learning_rate = 1e-3
config.optimizer.weight_decay = 0.0
config.optimizer.schedule.update({"kind": "constant", "warmup_steps": 1})
config.router.bias_rate = config.router.bias_rate_final = 0.0
assert train_by_rewards(resolve(config), WORKDIR / "rl") == 0

# %%
from k2jax.report.metrics import read_metrics

SHOWN = ("created", "assigned", "finished", "total_steps", "critical_steps", "parallelism", "score")
metrics = [record for record in read_metrics(WORKDIR / "rl") if "reward" in record]
rows = [
    (str(record["step"]), f"{record['reward']:.2f}", *(f"{record[f'swarm/{name}']:.2f}" for name in SHOWN))
    for record in metrics
]
print(markdown_table(("iteration", "reward", *SHOWN), rows))

# %%
figure, grid = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
steps = [record["step"] for record in metrics]
for axes, names in zip(grid, (("created", "assigned", "finished"), ("total_steps", "critical_steps")), strict=True):
    for name in names:
        line = "--" if name == "finished" else "-"  # mostly on top of assigned
        axes.plot(steps, [record[f"swarm/{name}"] for record in metrics], f"o{line}", label=name.replace("_", " "))
    highest = max(record[f"swarm/{names[0]}"] for record in metrics)
    axes.set(xlabel="iteration", ylabel="mean of an episode", xticks=steps, ylim=(0, 1.15 * highest + 0.1))
    axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The episode of the last iteration with the most assignments:

# %%
from k2jax.trajectory.store import TrajectoryStore

last = list(TrajectoryStore(WORKDIR / "rl/trajectories").read(steps[-1]))
most = max(last, key=lambda episode: swarm_record(episode).assigned)
for node in most.nodes:
    print(f"{node.message['role']:>10}  {tokenizer.decode(node.tokens.tolist())!r}")
if most.spawned:
    show_time_line(most, 400)

# %% [markdown]
# ## The real experiment
#
# In 60 iterations of `experiments/rl/swarm_nano.py` parallelism rises from 1.1 to about 3, with weights that fall to 0,
# in eight minutes on two CPU cores behind the start:
#
# ```sh
# python -m k2jax.env.demonstrate --to=runs/lookups.jsonl --dataset=lookups --parallel=0.08 --count=18000
# python -m k2jax.env.demonstrate --to=runs/single-lookups.jsonl --dataset=lookups --kinds=wide1 --count=6000
# python -m k2jax.train --config=experiments/sft/swarm_nano.py --workdir=runs/sft-swarm-nano
# python -m k2jax.rl --config=experiments/rl/swarm_nano.py --workdir=runs/rl-swarm-nano
# ```
#
# - `plots/swarm.png` of that run shows accuracy above parallelism, and
#   `python -m k2jax.trajectories runs/rl-swarm-nano` the time line of every episode.
# - `python -m k2jax.reproduce swarm` compares PARL with a single agent and with its own parts, over three seeds.
# - `rl.parl.joint` lets the sub-agents learn, too; `rl.roles.NAME.later` names larger ones for later iterations.
