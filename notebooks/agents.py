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
# # Agents with tools
#
# An agent answers in several turns. Between them it calls tools, and what they say is not in its prompt. This notebook
# makes such a task from nothing: a dataset, a tool and a verifier of one's own, wired by a config. It plays one episode
# step by step, runs hostile programs in a sandbox, judges a program in a fresh one, and lets a context manager branch a
# conversation. Then a Kimi-K2 architecture of 1.2 million parameters is fine-tuned for some seconds, plays hundreds of
# episodes under the rollout manager, which is killed meanwhile, and learns by rewards to use its tool.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub. Sandboxes need Linux, and
# user namespaces, which some hosts forbid; `python -m k2jax.sandbox check` says what holds on a machine.

# %%
import importlib.util
import os
from pathlib import Path
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None:
    in_checkout = os.path.exists("../setup.py")
    package = "..[sandbox]" if in_checkout else "k2jax[sandbox] @ git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", package], check=True)
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "8"))  # iterations of reinforcement learning; fewer for a quick look
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/agents")).absolute()

# %%
import contextlib

from k2jax import runtime
from k2jax.agents.environment import EnvironmentMaker
from k2jax.agents.episode_key import EpisodeKey
from k2jax.rl.event_loop import EventLoop

runtime.prepare()
loop = contextlib.ExitStack().enter_context(EventLoop())  # the notebook's own thread runs an event loop already

# %% [markdown]
# ## A package with a dataset, a tool and a verifier
#
# A chest has six drawers. A drawer holds a number, or the name of the next drawer to open. `c?` asks for the number at
# the end of the chain that begins at `c`. What the drawers hold is in the task's metadata, where the tool finds it, and
# in no prompt: a guess is right once in ninety times.
#
# - A **dataset** yields tasks. Each names its environment, toolsets and verifier, and has a budget.
# - A **toolset** is made anew for each episode. Of a Python function the signature becomes the schema of the tool, the
#   docstring its description, and an exception an error message to the model.
# - A **verifier** is a function of the task and the answer. It runs in a process that can be killed.

# %%
PACKAGE = '''
"""Numbers that lie in drawers: tasks, tools, and a verifier."""

import random

from k2jax.agents import Budget, Task
from k2jax.agents.toolsets.functions import FunctionTools
from k2jax.trajectory import Reward


class DrawerTasks:
    def __init__(self, count: int = 1000, seed: int = 0, split: str = "train"):
        self.count, self.rng = count, random.Random(f"{seed} {split}")

    def load(self):
        for _ in range(self.count):
            drawers, hops = self.rng.sample("abcdef", 6), self.rng.choice((1, 1, 2, 3))
            chest = {name: str(self.rng.randint(10, 99)) for name in drawers}
            chest |= dict(zip(drawers[: hops - 1], drawers[1:hops]))
            yield Task(
                id=f"{drawers[0]} {chest}",
                domain=f"{hops} to open",
                instruction=({"role": "user", "content": f"{drawers[0]}?"},),
                verifier="drawers",
                environment="tools",
                tools=("drawers",),
                budget=Budget(steps=8),
                metadata={"chest": chest, "answer": chest[drawers[hops - 1]]},
            )


class DrawerTools(FunctionTools):
    def __init__(self):
        super().__init__([self.look, self.describe])

    async def open(self, workplace):
        self.chest = workplace.task.metadata["chest"]

    def look(self, drawer: str) -> str:
        """Opens a drawer and says what lies in it.

        Args:
            drawer: its letter.
        """
        if drawer not in self.chest:
            raise ValueError(f"there is no drawer {drawer}")
        return self.chest[drawer]

    def describe(self, drawer: str) -> str:
        """Describes a drawer at length, as tools do."""
        return f"Drawer {drawer} is made of oak. It is a hand wide, and shut. " * 2


def right_number(task: Task, answer: str) -> Reward:
    return Reward(float(answer == task.metadata["answer"]))
'''
ENTRY_POINTS = """
[k2jax.datasets]
drawers = drawers:DrawerTasks
[k2jax.toolsets]
drawers = drawers:DrawerTools
[k2jax.verifiers]
drawers = drawers:right_number
"""

# %% [markdown]
# The files are what `pip install` of a package leaves, with its entry points. This process and those that it starts
# find them there.

# %%
packages = WORKDIR / "packages"
(packages / "drawers-1.0.dist-info").mkdir(parents=True, exist_ok=True)
(packages / "drawers.py").write_text(PACKAGE)
(packages / "drawers-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: drawers\nVersion: 1.0\n")
(packages / "drawers-1.0.dist-info/entry_points.txt").write_text(ENTRY_POINTS)
sys.path.insert(0, str(packages))
os.environ["PYTHONPATH"] = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])

# %% [markdown]
# ## An experiment is a config
#
# A class of tasks is a dataset × toolsets × scaffold × verifier, and the sandbox of all classes is chosen beside it.
# What is left out stays the dataset's choice. The rest of the file is the run of reinforcement learning at the end.

# %%
EXPERIMENT = f"""
from k2jax.config import defaults, task


def get_config():
    config = defaults("rl", model="micro")
    config.rl.tasks = {{
        "drawers": task(
            dataset="drawers",
            options=("count=4000",),
            tools=("drawers",),
            scaffold="chat context=none",
            verifier="drawers",
            max_tokens=12,  # of an answer
            steps=6,  # calls of the model
        )
    }}
    config.rl.rollout.sandbox = "bubblewrap"
    config.rl.rollout.update({{"prompts": 16, "samples": 8, "max_length": 96}})
    config.init_from = {str(WORKDIR / "sft")!r}
    config.data.chat_format = "compact"
    config.data.sequence_length = 128
    config.rl.updates = 4
    config.rl.skip_flat_groups = True
    config.rl.eval_prompts = 64
    config.rl.eval_samples = 2
    config.rl.keep_trajectories = {STEPS}
    config.train.steps = {STEPS}
    config.train.batch_size = 16
    config.optimizer.learning_rate = 5e-4
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule.warmup_steps = 1
    config.router.bias_rate = config.router.bias_rate_final = 0.0
    config.eval.every = {STEPS}
    config.log.plots_every = 1000
    config.log.tensorboard = False
    return config
"""
(WORKDIR / "experiment.py").write_text(EXPERIMENT)

# %%
import json

from k2jax.agents.mixture import TaskMixture
from k2jax.config import load_experiment, resolve

experiment = resolve(load_experiment(WORKDIR / "experiment.py").get_config())
mixture = TaskMixture(experiment.rl.tasks, experiment.train.seed)
drawn = [mixture.prompt(number).task for number in range(32)]
task = next(task for task in drawn if task.domain == "3 to open")
print(json.dumps(json.loads(task.to_json()), indent=1))

# %% [markdown]
# ## An episode, step by step
#
# An environment takes answers of the assistant and shows what follows: `reset`, then `step` until it is over. A wrong
# call is answered, whatever is wrong with it. It never ends the run.

# %%
from k2jax.agents.scripted import called, called_all, said

maker = EnvironmentMaker(experiment.rl.rollout.sandbox)


def play(task, actions):
    """Plays an episode of given answers, and prints it."""

    async def played():
        environment = maker.make(task)
        try:
            show((await environment.reset(task, seed=0)).messages)
            for action in actions:
                show([action])
                step = await environment.step(action)
                show(step.observation.messages)
            print("the episode is over" if step.terminated else "it could continue")
        finally:
            await environment.close()

    loop.run(played())


def show(messages):
    """Prints the last lines of messages, with calls as Python writes them."""
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        text = message["content"] + "".join(f"{call['name']}({call['arguments']}) " for call in calls)
        print(f"{message['role']:>10}  " + "\n            ".join(text.strip().splitlines()[-2:]))


first = task.instruction[0]["content"][0]
second = task.metadata["chest"][first]
play(
    task,
    [
        called("look", drawer=first),
        called_all([("look", {"drawer": second}), ("look", {"drawer": "z"})]),  # two calls in one answer
        called("look", drawer=7),
        called("open", drawer=second),
        said("I do not know."),
    ],
)

# %% [markdown]
# ## In a sandbox
#
# The built-in toolsets `python` (an interpreter that keeps its variables) and `shell` work in a sandbox, one for each
# episode: namespaces and a filter of system calls around an empty file system, without a network. It is opened because
# a toolset of the task needs it. An exception is a traceback that the model reads.

# %%
import dataclasses

coder = dataclasses.replace(task, tools=("python timeout=2", "shell timeout=1"))
play(
    coder,
    [
        called("python", code="numbers = [n * n for n in range(5)]\nsum(numbers)"),
        called("python", code="numbers[9]"),
        called("shell", command="echo 'kept until the episode ends' > note; ls -l; id -u"),
        called("python", code="open('note').read()"),
    ],
)

# %% [markdown]
# Now an agent that means harm: it multiplies without end, takes all memory, reads what is not its own, calls the
# outside, and leaves a program behind.

# %%
SURVIVOR = "sleep 98765"
play(
    coder,
    [
        called("shell", command="bomb() { bomb | bomb & }; bomb; sleep 60"),
        called("python", code="memory = []\nwhile True: memory.append(bytearray(1 << 26))"),
        called("shell", command="cat /etc/shadow; ls /home; touch /usr/mine"),
        called("python", code="import socket\nsocket.create_connection(('1.1.1.1', 80), 1)"),
        called("shell", command=f"setsid {SURVIVOR} & echo left behind"),
        called("python", code="'and the sandbox still works'"),
    ],
)


def runs(command):
    """Whether any process of this machine runs a command."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if process.read_bytes().replace(b"\0", b" ").strip() == command.encode():
                return True
    return False


assert not runs(SURVIVOR)
print("the program that was left behind runs on:", runs(SURVIVOR))

# %% [markdown]
# ## Judged in a fresh sandbox
#
# A verifier of code gets a sandbox in which no agent has been. Here unit tests judge an expression that has to fit its
# word: a right one, a wrong one, one that ends the process before a test can fail, and one that brings a kinder `==`.
# The tests run in one process and the answer in another, so neither trick helps.

# %%
from k2jax.agents.dataset import load_tasks
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.scorer import Scorer
from k2jax.agents.scripted import play as play_policy
from k2jax.agents.verifier_pool.pool import VerifierPool

[program] = load_tasks("expressions", ("count=1",))
right, wrong, _ = program.metadata["readings"]
answers = {
    "right": right,
    "wrong": wrong,
    "ends the process": "__import__('os')._exit(0)",
    "equals everything": "type('Any', (int,), {'__eq__': lambda self, other: True})()",
}


async def judged(scorer, answer):
    """The reward of an episode whose only answer is this one."""
    trajectory = await play_policy(program, maker.make(program), lambda task, messages: said(answer))
    await scorer.judge(program, trajectory)
    return trajectory.reward


with VerifierPool(workers=1, timeout=30.0, retries=1) as pool:
    scorer = Scorer(pool, backend=make_backend(experiment.rl.rollout.sandbox))
    print(f"{program.instruction[0]['content']}\n")
    for name, answer in answers.items():
        reward = loop.run(judged(scorer, answer))
        assert reward.value == (name == "right")
        print(f"reward {reward.value:g}  {name:18} {answer}")

# %% [markdown]
# ## What is kept of an episode: its tokens
#
# For training, an episode is a tree of token ids. A rollout samples from a client of a model; here the client is a
# program that asks for long descriptions of four drawers and then opens one. The format of conversations is for models
# of characters: a line that begins with `!` is a call.
#
# The scaffold manages the context: beyond 250 tokens it hides the results of tools before the last round (Kimi K2.5,
# appendix E.6). The conversation then continues in a branch. What was sampled stays in the tree once, after the context
# in which it was sampled; in the branch it is repeated as context, and not trained on again.

# %%
from k2jax.agents.episode import run_episode
from k2jax.client import Sampling, ScriptedClient
from k2jax.text import byte_tokenizer, configured_chat
from k2jax.trajectory import verify

tokenizer = byte_tokenizer()
chat = configured_chat(tokenizer, "compact")
lines = iter([*(f"!describe {drawer}" for drawer in "abcd"), f"!look {first}", "I stop here."])
client = ScriptedClient(lambda prompt, sampling: [*tokenizer.encode(next(lines)), tokenizer.eos])
managed = dataclasses.replace(task, scaffold="chat context=hide_tool_result tokens=250")
episode = loop.run(
    run_episode(
        managed,
        client,
        chat,
        tokenizer,
        maker.make(managed),
        key=EpisodeKey("train", 0, 0, 0),
        seed=0,
        sampling=Sampling(max_tokens=40, temperature=1.0),
    )
)
assert verify(episode) == [] and episode.metadata["context"]
print(f"{episode.status}: {episode.sampled_tokens} sampled tokens, {len(episode.metadata['context'])} times shortened")

# %%
import matplotlib.pyplot as plt

from k2jax.agents.viewer.tree_picture import outline_of

BLUE, GREY, ORANGE, GREEN = "#2f7fa3", "#b9c2cd", "#d98324", "#2f9270"
outline = outline_of(episode)
figure, axis = plt.subplots(figsize=(9, 0.8 + 0.5 * outline.path_count), layout="constrained")
for index, node in enumerate(episode.nodes):
    row = outline.first_path[index] + (outline.paths[index] - 1) / 2
    color = BLUE if node.mask.any() else GREY
    axis.barh(row, len(node.tokens), 0.9 * outline.paths[index], outline.depth[index], color=color, edgecolor="white")
for label, color in (("sampled, trained on", BLUE), ("observed, or repeated", GREY)):
    axis.barh(0, 0, color=color, label=label)
axis.set(xlabel="tokens from the beginning", ylabel="path", yticks=range(outline.path_count))
axis.set_title("An episode whose context was shortened")
axis.invert_yaxis()
axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## A model that can use the tool, and mostly does not
#
# The teacher opens the drawers in four of ten demonstrations. In the others it names a number at once, which is nearly
# always wrong. A model that imitates it learns both: to follow a chain of drawers, and to guess.

# %%
import random

from k2jax.config import defaults, source
from k2jax.train import train


def demonstration(task, rng):
    """A conversation of the teacher."""
    messages, here = list(task.instruction), task.instruction[0]["content"][0]
    if rng.random() < 0.6:
        return {"messages": [*messages, said(str(rng.randint(10, 99)))]}
    while not here.isdigit():
        messages.append(called("look", drawer=here))
        here = task.metadata["chest"][here]
        messages.append({"role": "tool", "tool_call_id": "0", "name": "look", "content": here})
    return {"messages": [*messages, said(here)]}


rng = random.Random(0)
demonstrations = [demonstration(task, rng) for task in load_tasks("drawers", ("count=6000", "seed=1"))]
(WORKDIR / "demonstrations.jsonl").write_text("".join(json.dumps(each) + "\n" for each in demonstrations))
for conversation in demonstrations[:3]:
    show(conversation["messages"])

# %%
config = defaults("sft", model="micro")
config.data.sources = {"drawers": source(kind="chat", path=str(WORKDIR / "demonstrations.jsonl"))}
config.data.tokenizer.kind = "bytes"
config.data.chat_format = "compact"
config.data.sequence_length = 128
config.train.steps = 12 * STEPS
config.train.batch_size = 16
config.optimizer.learning_rate = 1e-2
config.router.bias_rate, config.router.bias_rate_final = 5e-2, 1e-3
config.eval.every = 6 * STEPS
config.eval.sample_tokens = 0
config.log.plots_every = 1000
config.log.tensorboard = False
train(resolve(config), WORKDIR / "sft")

# %% [markdown]
# ## Many episodes, and a kill
#
# `python -m k2jax.rollout` collects episodes with a checkpoint. One process schedules, an engine answers, and worker
# processes run the episodes with their environments and verifiers. The command is killed with `kill -9` when a quarter
# of the episodes has ended, and given again.

# %%
import time

from k2jax.agents.collect.journal import read_journal

EPISODES = 400
command = [sys.executable, "-m", "k2jax.rollout", f"--config={WORKDIR / 'experiment.py'}"]
command += [f"--checkpoint={WORKDIR / 'sft'}", f"--workdir={WORKDIR / 'collection'}", "--trace", "--workers=2"]
command += [f"--tasks={EPISODES // 4}", "--samples=4", "--capacity=16"]
killed = subprocess.Popen(command, start_new_session=True)
while killed.poll() is None:
    time.sleep(0.02)
    if (WORKDIR / "collection/journal").exists() and len(read_journal(WORKDIR / "collection")) >= EPISODES // 4:
        killed.kill()
print("killed with", len(read_journal(WORKDIR / "collection")), "episodes in its journal")

# %%
print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
ended = read_journal(WORKDIR / "collection")
assert len(ended) == len({emission.key for emission in ended}) == EPISODES
subprocess.run([*command[:3], f"--workdir={WORKDIR / 'collection'}", "--verify"], check=True)

# %% [markdown]
# Every episode is there once. The second command wrote a trace: what each coroutine of each worker waited for. A bar is
# an episode, whose parts are sums over it, in no order of time. At first all wait for the engine, which compiles its
# programs; episodes that begin later are too short to be seen apart. (`trace.json` opens in Perfetto as well.)

# %%
events = json.loads((WORKDIR / "collection/trace.json").read_text())["traceEvents"]
spans = [event for event in events if event["ph"] == "X"]
rows = {place: row for row, place in enumerate(sorted({(span["pid"], span["tid"]) for span in spans}))}
PARTS = {"engine": BLUE, "environment": ORANGE, "scoring": GREEN}
figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
for span in spans:
    begin, place = span["ts"] / 1e6, rows[span["pid"], span["tid"]]
    axis.barh(place, span["dur"] / 1e6, 0.8, begin, color=GREY)
    for part, color in PARTS.items():
        axis.barh(place, span["args"][part], 0.8, begin, color=color)
        begin += span["args"][part]
for label, color in {"the engine": BLUE, "tools": ORANGE, "the verifier": GREEN, "the scheduler": GREY}.items():
    axis.barh(0, 0, color=color, label=label)
axis.set(xlabel="seconds since the command was given again", ylabel="coroutines of two workers", yticks=[])
axis.set_title("What episodes waited for")
axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## Reinforcement learning
#
# The loop of the same experiment file: eight episodes of each of 16 tasks, a reward for the last answer alone, the
# advantage over the mean of the eight, and an update of every token that the model sampled, calls and answers. Nobody
# tells the model to call its tool. (`notebooks/post_training.ipynb` explains the loop.)
#
# With the settings above, one run went from 43 % to 92 % of sampled episodes that are right, and on held-out tasks from
# 38 % to 91 %. Greedy answers were right from the start, all of them: the teacher guesses more often than it calls, but
# no single first digit of a guess is as likely as the mark of a call.

# %%
from k2jax.rl.loop import train as train_by_rewards

train_by_rewards(experiment, WORKDIR / "rl")

# %%
from k2jax.report.metrics import read_metrics
from k2jax.trajectory.store import TrajectoryStore

store = TrajectoryStore(WORKDIR / "rl/trajectories")
records = [record for record in read_metrics(WORKDIR / "rl") if record["step"]]
episodes = {step: list(store.read(step)) for step in store.steps()}
looking = [
    sum(any((node.message or {}).get("tool_calls") for node in episode.nodes) for episode in episodes[step])
    / len(episodes[step])
    for step in episodes
]
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
axis.plot([record["step"] for record in records], [record["accuracy"] for record in records], "o-", color=BLUE)
axis.plot(list(episodes), looking, "o--", color=ORANGE)
axis.legend(["right answers", "episodes with a call"], loc="lower right")
axis.set(xlabel="iteration", ylabel="share of sampled episodes", ylim=(0, 1.05))
axis.set_title("Rewards teach the use of a tool")
plt.show()

# %%
for name in ("greedy", "avg@2"):
    shares = [record[f"eval/{name}"] for record in read_metrics(WORKDIR / "rl") if f"eval/{name}" in record]
    print(f"held-out tasks, {name:6}  {shares[0]:.0%} before, {shares[-1]:.0%} after")

# %% [markdown]
# ## The page
#
# `python -m k2jax.trajectories WORKDIR` writes a page for an iteration. Here are the eight episodes of one task of the
# first iteration: verdicts, trees, turns, and every token with its log-probability.

# %%
from html import escape

from IPython.display import HTML, display

from k2jax.agents.viewer.viewer import write_page
from k2jax.trajectories import decoder

groups = {}
for trajectory in episodes[1]:
    groups.setdefault(trajectory.task, []).append(trajectory)
mixed = max(groups.values(), key=lambda group: len({trajectory.reward.value for trajectory in group}))
page = write_page(WORKDIR / "page.html", mixed, decoder(tokenizer), title="Eight episodes of one task")
inside = escape(page.read_text().replace("<head>", '<head><base href="about:srcdoc">'))  # links stay in the frame
display(HTML(f'<div><iframe srcdoc="{inside}" width="100%" height="640"></iframe></div>'))

# %% [markdown]
# ## Further
#
# - `docs/environments.md`: datasets, toolsets (search, files, MCP servers), scaffolds, repositories, terminals, and
#   environments of other packages. `python -m k2jax.env.check` plays a dataset with a policy that solves it.
# - `docs/sandboxes.md`: what is isolated, and what is not. `docs/rollouts.md`: a hundred thousand episodes at a time.
# - `experiments/rl/tools_nano.py`, `terminal_nano.py` and `code_nano.py`: harder tasks with tools, a terminal, and an
#   interpreter. Their studies over three seeds are in `docs/reproductions.md`.
# - `notebooks/gateway.ipynb`: agents that are programs of others.
