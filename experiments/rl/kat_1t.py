r"""KAT-Coder-V2's reinforcement learning in agents, on Kimi K2's architecture of 1.04T parameters and one TPU pod.

Reproduces: turn-level GSPO with IcePop, averaged log-probabilities and Tree Training (KAT-Coder-V2, section 3.3) on
tasks of software engineering and terminals; training and engine share the chips as in k2_1t.py. The report's model is
another one, and its band and learning rate are not known: GSPO's band, and rates of a common size.
Expected: nothing was trained with it. It may be compiled as k2_1t.py is:

    python -m k2jax.aot --config=experiments/rl/kat_1t.py --topology=v5p:8x8x16 --mode=sync

Name your own checkpoint, tokenizer and tasks; scaffold="black_box agent=FILE" puts an agent of yours in the place of
the project's own loop (docs/gateway.md).
"""

from pathlib import Path

from k2jax.config import load_experiment, task

base = load_experiment(Path(__file__).with_name("k2_1t.py"))


def get_config():
    """The experiment."""
    config = base.on_one_pod("kat")
    rl = config.rl
    budget = {"max_tokens": 3072, "episode_tokens": 3072}
    rl.tasks = {
        "issues": task(dataset="swe", options=("path=tasks/issues.jsonl",), weight=3.0, steps=50, **budget),
        "terminal": task(dataset="terminal", options=("count=100000",), steps=30, **budget),
        "code": task(dataset="code", options=("path=tasks/code.jsonl",), max_tokens=3072),
    }
    rl.updates = 4
    rl.skip_flat_groups = True
    return config
