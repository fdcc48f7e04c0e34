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
# # Reinforcement learning with verifiable rewards
#
# A Kimi-K2 architecture of 1.2 million parameters reads easy problems, then imitates a teacher who rarely shows his
# work on harder ones. Then it learns by trial and error, with the objective of Kimi K2.5: it answers problems, a
# program checks the answers, and what was better than average becomes more likely.
#
# With the settings below one run took 8.5 minutes of processor time, on two cores that other work shared. Held-out
# problems that it solved greedily rose from 61 % to 91 % of 128, sampled answers that were right from 44 % to 87 %.

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
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "40"))  # iterations; fewer for a quick look
WORKDIR = Path(os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/post_training"))

# %%
from k2jax import runtime

runtime.prepare()

# %% [markdown]
# ## The tasks
#
# Add two numbers of three digits, add up six digits, sort six letters. A task is a prompt and the name of a *verifier*,
# a program that gives the answer a reward. Here it compares what follows the last `;` with the right result. A tenth of
# all problems, chosen by a hash of the prompt, is held out: it never occurs in training.

# %%
from k2jax.agents.dataset import load_tasks

OPTIONS = ("kinds=add3+sum6+sort6", "count=20000")
tasks = load_tasks("characters", OPTIONS)
for task in tasks[:3]:
    print(f"{task.instruction[0]['content']:<16} right answer {task.metadata['answer']:<8} verifier {task.verifier}")

# %% [markdown]
# ## Pretraining on easier problems
#
# A large model has read how problems are solved long before it is rewarded for solving any. This one reads shorter
# problems of the same and other kinds, with their working: sums and differences of two digits, four digits to add up,
# four letters to sort or to reverse. It sees no problem of the tasks above.

# %%
import json

from k2jax.tasks.characters.teacher import demonstrations, pretraining_texts

easier = load_tasks("characters", ("kinds=add2+sub2+sum4+sort4+rev4", "count=20000"))
texts = list(pretraining_texts(easier))
WORKDIR.mkdir(parents=True, exist_ok=True)
(WORKDIR / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
print("\n".join(texts[:4]))

# %%
from k2jax.config import defaults, resolve, source
from k2jax.train import train


def training(stage, kind, file, steps):
    """What pretraining and fine-tuning share: bytes as tokens, rows of 256 of them, MuonClip."""
    config = defaults(stage, model="micro")
    config.data.sources = {"problems": source(kind=kind, path=str(WORKDIR / file))}
    config.data.tokenizer.kind = "bytes"
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.train.steps = steps
    config.train.batch_size = 16
    config.optimizer.learning_rate = 1e-2
    config.router.bias_rate = 5e-2
    config.router.bias_rate_final = 1e-3
    config.eval.every = steps
    config.eval.sample_tokens = 0
    return config


train(resolve(training("pretrain", "jsonl", "text.jsonl", 4 * STEPS)), WORKDIR / "pretrained")

# %% [markdown]
# ## Fine-tuning on an imperfect teacher
#
# The teacher's demonstrations are of the tasks, and all correct, but six of ten give the result at once. A model this
# small cannot do in one step what takes several; it learns the working from the other four.

# %%
lines = [json.dumps(conversation) for conversation in demonstrations(tasks, direct=0.6)]
(WORKDIR / "demonstrations.jsonl").write_text("\n".join(lines) + "\n")
print("\n".join(lines[:3]))

# %% [markdown]
# Supervised fine-tuning is a training like any other, with the loss on the assistant's tokens alone. It begins with the
# pretrained weights.

# %%
fine_tuning = training("sft", "chat", "demonstrations.jsonl", 6 * STEPS)
fine_tuning.init_from = str(WORKDIR / "pretrained")
train(resolve(fine_tuning), WORKDIR / "sft")

# %%
from IPython.display import HTML, Image, display

display(Image(WORKDIR / "sft/plots/loss.png"))

# %% [markdown]
# ## The loop
#
# An iteration of reinforcement learning has six steps:
#
# 1. **Rollout.** The engine samples $K = 8$ responses to each of 64 prompts. With every token it records
#    $\log \mu$, the log-probability with which the token was drawn. The prompt is computed once for all eight.
# 2. **Verifier.** A program in a process of its own gives each response $j$ a reward $r_j$: 1 if the answer is right,
#    else 0. It runs while other responses are still being written.
# 3. **Advantage.** How much better a response was than the average of the eight responses to the same prompt:
#    $A_j = r_j - \frac{1}{K}\sum_{i} r_i$. Where all eight are right, or all are wrong, there is nothing to learn.
# 4. **Loss.** The objective of Kimi K2.5, to be maximised, is
#    $$J = \frac{1}{N} \sum_j \sum_t \Big[\operatorname{Clip}(\rho_{j,t}, \alpha, \beta)\, A_j
#    - \tau \,(\log \rho_{j,t})^2\Big], \qquad
#    \rho_{j,t} = \frac{\pi_\theta(y_{j,t} \mid x, y_{j,<t})}{\pi_{\text{old}}(y_{j,t} \mid x, y_{j,<t})}.$$
#    $\rho$ says how much more likely a token has become since it was sampled, and $N$ is the number of sampled tokens.
#    A token whose ratio has left the band $[\alpha, \beta]$ has no gradient from the first term. The second term,
#    weighed by $\tau$, holds the model near the one that sampled.
# 5. **Update.** MuonClip takes a step along the gradient; here four steps, each on a quarter of the prompts.
# 6. **Weight sync.** The new weights go to the engine, checked by a checksum, and the next iteration samples with them.
#
# One config names all of it. The tasks decide what is rewarded; the rest is as for any other task.

# %%
from k2jax.config import task as task_class

config = defaults("rl", model="micro")
config.init_from = str(WORKDIR / "sft")
config.data.chat_format = "plain"
config.data.sequence_length = 256
config.rl.tasks = {"characters": task_class(dataset="characters", options=OPTIONS, max_tokens=64)}
config.rl.rollout.prompts = min(64, 4 * STEPS)
config.rl.rollout.samples = 8
config.rl.rollout.max_length = 96
config.rl.loss.name = "k2.5"
config.rl.loss.tau = 0.01
config.rl.loss.ratio_low, config.rl.loss.ratio_high = 0.5, 2.0
config.rl.updates = 4
config.rl.skip_flat_groups = True
config.rl.eval_prompts = min(128, 4 * STEPS)
config.rl.eval_samples = 4
config.rl.keep_trajectories = STEPS
config.train.steps = STEPS
config.train.batch_size = 16
config.optimizer.learning_rate = 5e-4
config.optimizer.weight_decay = 0.0
config.optimizer.schedule.warmup_steps = 2
config.router.bias_rate = config.router.bias_rate_final = 0.0
config.eval.every = (STEPS + 2) // 3
config.log.plots_every = 1000
experiment = resolve(config)

# %% [markdown]
# **Train.** Like every run it can be interrupted, or killed, and continues where it was.

# %%
from k2jax.rl.loop import train as train_by_rewards

train_by_rewards(experiment, WORKDIR / "rl")

# %% [markdown]
# ## What came of it
#
# The share of right answers: of the responses that were sampled in training, and on held-out problems, where *greedy*
# always takes the most likely token. In the run of the first paragraph most of the rise came within 15 iterations. At
# the end two of three groups were all right or all wrong, and taught nothing.

# %%
display(Image(WORKDIR / "rl/plots/accuracy.png"))

# %% [markdown]
# **Responses** change as well. To show one's work takes more tokens.

# %%
display(Image(WORKDIR / "rl/plots/responses.png"))

# %% [markdown]
# The same in words: sampled responses of the first and of the last iteration, and the share of those that show their
# work. A change of accuracy can be one of style or of skill. In that run it was both. From the first to the last
# iteration it stopped answering sums of three digits and running sums at once, and worked ones became right more
# often: from 37 % to 68 % and from 69 % to 98 %. Sorting, of which it could do 82 % at once, it answers at once.

# %%
from k2jax.tasks.characters.teacher import style_of
from k2jax.trajectory.store import TrajectoryStore

store = TrajectoryStore(WORKDIR / "rl/trajectories")
for step in (store.steps()[0], store.steps()[-1]):
    responses = list(store.read(step))
    worked = sum(style_of(response.answer) == "worked" for response in responses) / len(responses)
    print(f"iteration {step}: {worked:.0%} show their work")
    for response in responses[:: len(responses) // 4]:
        print(f"  reward {response.reward.value:.0f}   {response.task.split('/')[1]}{response.answer}")

# %% [markdown]
# ## A trajectory
#
# Everything that was sampled is stored as a *trajectory*: tokens with their log-probabilities, the version of the
# weights that chose each, and the reward. Below are the eight responses to one prompt of the first iteration. Choose
# one on the left to see its tokens, and point at a token for its probability. `python -m k2jax.trajectories` writes
# such a page for a whole iteration.

# %%
from html import escape

from k2jax.agents.viewer.viewer import write_page
from k2jax.text.tokenizer import load_tokenizer
from k2jax.trajectories import decoder

groups = {}
for trajectory in store.read(store.steps()[0]):
    groups.setdefault(trajectory.task, []).append(trajectory)
mixed = max(groups.values(), key=lambda group: len({trajectory.reward.value for trajectory in group}))
decode = decoder(load_tokenizer(WORKDIR / "rl/tokenizer"))
page = write_page(WORKDIR / "group.html", mixed, decode, title="Eight responses to one prompt")
inside = escape(page.read_text().replace("<head>", '<head><base href="about:srcdoc">'))  # links stay in the frame
display(HTML(f'<div><iframe srcdoc="{inside}" width="100%" height="640"></iframe></div>'))

# %% [markdown]
# ## Further
#
# - `python -m k2jax.reproduce nano_post_training` compares with as much more fine-tuning, with rejection sampling and
#   with a teacher who always shows his work, over three seeds.
# - `config.rl.loss.name` takes `k2`, `kat`, `gspo`, `ppo` and `reinforce` too; `config.rl.tasks` takes several classes
#   of tasks with temperatures and budgets of their own.
