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
# # Data that agents learn from
#
# Kimi K2 learnt to use tools from data that models wrote: worlds with tools, agents, tasks with rubrics, users,
# dialogues, and a judge who keeps what is worth learning (section 3.1.1). `python -m k2jax.synthesize` is this
# pipeline. Here programs play all models, so that it takes a minute and everything can be checked: faults are planted,
# and the judge has to find them.

# %% [markdown]
# **Install** what is missing: k2jax from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import json
import os
from pathlib import Path
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None:
    SOURCE = ".." if os.path.exists("../setup.py") else "git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", SOURCE], check=True)

WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/synthesis_notebook"))

# %% [markdown]
# ## A run
#
# A fifth of the dialogues has a mistake of the agent, a fifth a user who leaves or keeps back what it knows, a fifth a
# tool that does nothing or always fails. Run the cell twice: the second time nothing is made, because every record is
# kept under its content.

# %%
from k2jax.rl.event_loop import EventLoop
from k2jax.synthesize.pipeline import Machines, Synthesis
from k2jax.synthesize.settings import SynthesisConfig, ToolUseConfig

rates = {"mistakes": 0.2, "user_faults": 0.2, "tool_faults": 0.2, "failures": 0.0}
config = SynthesisConfig(tool_use=ToolUseConfig(tools=60, agents=20, tasks=80, **rates))
with EventLoop() as loop:
    counts = loop.run(Synthesis(WORKDIR, config, Machines(workers=1)).run())

# %% [markdown]
# ## The funnel
#
# What came into each stage, what was kept, and why the rest was not.

# %%
from IPython.display import Image, Markdown, display

display(Image(WORKDIR / "funnel.png"))
display(Markdown((WORKDIR / "funnel.md").read_text()))

# %% [markdown]
# ## A world
#
# A world is data: records, rules that no call may break, and tools whose semantics are JSON, so that nothing of what a
# model has written is executed.

# %%


def kept_of(stage):
    """The records that a stage has kept."""
    [path] = WORKDIR.glob(f"stages/??_{stage}/out.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


world = kept_of("worlds")[0]["world"]
print(world["policy"], "\n")
for tool in world["tools"]:
    print(f"{tool['name']}({', '.join(tool['parameters'])}): {tool['description']}")
changing = next(tool for tool in world["tools"] if tool["effects"])
print(json.dumps({key: changing[key] for key in ("requires", "effects", "returns")}, indent=1)[:1500])

# %% [markdown]
# ## A dialogue that was kept
#
# The user tells its wishes bit by bit; the agent asks, looks up, changes, and says what it has done. The rubric is
# what the judge looks for, and its verdict names the turns that show each point.

# %%
from k2jax.agents.judges.trajectories import transcript

record = max(kept_of("judged"), key=lambda one: len(one["task"]["calls"]))
print(transcript(record["dialogue"]["messages"][1:]))
for point, said in zip(record["task"]["rubric"], record["verdict"]["points"], strict=True):
    print(f"{'met' if said['met'] else 'not met'}, turns {said['turns']}: {point}")

# %% [markdown]
# What the calls have changed in the world:

# %%
first, last = record["task"]["state"], record["dialogue"]["left"]["state"]
for name, rows in last.items():
    for key in sorted(rows.keys() | first[name].keys()):
        if rows.get(key) != first[name].get(key):
            print(f"{name} {key}: {first[name].get(key)} -> {rows.get(key)}")

# %% [markdown]
# ## Dialogues that were dropped
#
# One for each reason. `samples.html` in the folder shows more of every stage.

# %%
unfiltered = [json.loads(line) for line in (WORKDIR / "unfiltered.jsonl").read_text().splitlines()]
for planted in ("agent", "user", "tool"):
    failed = [one for one in unfiltered if one["exact"]["planted"] == planted and not one["exact"]["solved"]]
    if failed:
        shortest = min(failed, key=lambda one: len(one["messages"]))
        print(f"--- planted in: {planted}, blamed: {shortest['exact']['blame']}")
        print(transcript(shortest["messages"][1:]), "\n")

# %% [markdown]
# ## What the judge has found
#
# Rows: in whom a fault was planted that kept the goal from being reached. Columns: whom the judge blames. It was told
# nothing of the plan: it reads the transcript, the rubric and the world.

# %%
import matplotlib.pyplot as plt

blamed = json.loads((WORKDIR / "manifest.json").read_text())["judge"]["blamed"]
rows, columns = [name for name in blamed if sum(blamed[name].values())], list(blamed["agent"])
figure, axes = plt.subplots(figsize=(4.5, 3))
axes.imshow([[blamed[row][column] for column in columns] for row in rows], cmap="Blues")
for y, row in enumerate(rows):
    for x, column in enumerate(columns):
        axes.text(x, y, blamed[row][column], ha="center", va="center")
axes.set_xticks(range(len(columns)), columns)
axes.set_yticks(range(len(rows)), rows)
axes.set_xlabel("blamed")
axes.set_ylabel("planted")
plt.show()

# %% [markdown]
# ## From here
#
# - `sft.jsonl` is read by `python -m k2jax.train`, `tasks.jsonl` by `python -m k2jax.rl`: the chain of
#   `experiments/synthesis/small_worlds.py`, `experiments/sft/worlds_nano.py` and `experiments/rl/worlds_nano.py`.
# - `python -m k2jax.reproduce synthetic_tools` is to measure what filtering is worth, on
#   tools that training has not shown.
# - `config.models` names servers that write, act, play users and judge; docs/synthesis.md says how.
