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
# # Train a small Kimi K2 with MuonClip
#
# A real, small Kimi-K2 architecture (multi-head latent attention, 32 experts of which 4 are active, MuonClip with
# QK-Clip) learns Python from the source code of Python's own standard library, on a free CPU, in a few minutes.

# %% [markdown]
# **Install** k2jax where it is missing: from the repository in a checkout, else from GitHub.

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("k2jax") is None:
    source = ".." if os.path.exists("../setup.py") else "git+https://github.com/k2jax/k2jax"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", source], check=True)
STEPS = int(os.environ.get("K2JAX_NOTEBOOK_STEPS", "200"))  # fewer for a quick look

# %% [markdown]
# **Prepare the process** before JAX starts: `prepare` chooses the platform and lets XLA reuse memory between steps.

# %%
from k2jax import runtime

runtime.prepare()

# %% [markdown]
# **One experiment is one config.** `defaults` holds every key with its type; an experiment changes the keys that it is
# about.
# Here the QK-Clip threshold is lowered from the report's 100, which a model this small never reaches, so that the clip
# has something to do.

# %%
from k2jax.config import defaults, resolve

config = defaults("pretrain", model="nano")
config.train.steps = STEPS
config.train.batch_size = 8
config.data.sequence_length = 256
config.optimizer.learning_rate = 8e-3
config.optimizer.schedule.warmup_steps = max(1, STEPS // 10)
config.optimizer.qk_clip_tau = 8.0
config.router.bias_rate = 5e-2
config.eval.every = max(1, STEPS // 4)
config.eval.final_rows = 64
experiment = resolve(config)

# %% [markdown]
# **The model's size.** Every weight is declared once; counts, optimizer groups and checkpoint names derive from it.
# Most parameters belong to experts that a given token does not use.

# %%
from k2jax.model import active_parameters, total_parameters

print(f"{total_parameters(experiment.model):,} parameters, {active_parameters(experiment.model):,} active per token")

# %% [markdown]
# **Train.** The first call trains a tokenizer and tokenises the corpus once; the first step compiles. Interrupt the
# cell and run it again: it resumes from its last checkpoint with the same losses, bit for bit.

# %%
from k2jax.train import train

workdir = os.environ.get("K2JAX_NOTEBOOK_WORKDIR", "runs/quickstart")
train(experiment, workdir)

# %% [markdown]
# **Loss and bits per byte.** The dashed lines show how many bits per byte the same held-out text takes with the
# frequencies of single bytes, with gzip and with xz.

# %%
from IPython.display import Image, display

display(Image(f"{workdir}/plots/loss.png"))

# %% [markdown]
# **QK-Clip at work.** The largest attention logit of every head: once it passes the threshold, the head's query and key
# weights are scaled down until it returns to the threshold, while the other heads are left alone.

# %%
display(Image(f"{workdir}/plots/max_logit.png"))

# %% [markdown]
# **Experts share the load.** A bias per expert, moved after each step, steers tokens to starved experts without any
# auxiliary loss.

# %%
display(Image(f"{workdir}/plots/expert_load.png"))

# %% [markdown]
# **Samples.** The model continues each prompt. After a few minutes of training the text looks like Python and does not
# make sense.

# %%
from k2jax.report.samples import read_samples

for sample in list(read_samples(workdir).values())[-1]:
    print(sample.prompt + sample.text)
    print("-" * 80)
