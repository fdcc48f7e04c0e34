"""SmolLM2-135M-Instruct learns from the rewards of a harness that knows nothing of this project.

Reproduces: how Kimi K2.5 and KAT-Coder-V2 train on environments of others (Kimi K2.5, appendix D; KAT-Coder-V2,
section 2), not their scale or their tasks: a program plays every episode, with containers and a scorer of its own, and
hands back a reward. experiments/rl/agents/own_harness.py is one of a page, whose containers are bubblewrap's.
Expected: not measured. Model, objective and rates are those of smollm2.py.

    pip install -e ".[smol,sandbox,serve]"
    python -m k2jax.rl --config=experiments/rl/own_harness.py --workdir=runs/rl-own-harness
"""

from pathlib import Path

from k2jax.config import config_beside, task

HARNESS = Path(__file__).with_name("agents") / "own_harness.py"


def get_config():
    """The experiment: model, objective and rates are those of smollm2.py."""
    config = config_beside(__file__, "smollm2.py")
    files = task(dataset="file_answers", options=("kinds=write+copy", "count=1000"), max_tokens=64, steps=6)
    files.scaffold = f"command program='python {HARNESS}' seconds=120 turns=all"
    files.verifier = "handed_back"
    config.rl.tasks = {"files": files}
    config.rl.rollout.update({"max_length": 500, "concurrency": 8})
    return config
