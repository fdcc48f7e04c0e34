"""SmolLM2-135M-Instruct learns to leave files in a folder, through mini-swe-agent, which nobody changed.

Reproduces: how KAT-Coder-V2 trains through agents that it does not own (KAT-Coder-V2, section 2; Kimi K2.5, appendix
D), not its scale or its tasks. mini-swe-agent runs in a sandbox with a prompt of its own of some 60 tokens
(experiments/rl/agents/mini_text.json); its only way out is its rollout at the gateway.
Expected: not measured; starting mini-swe-agent takes 0.8 s of processor time in every episode, and its model's turns
more, so a run wants many cores or an accelerator. Model, objective and rates are those of smollm2.py.

    pip install -e ".[smol,sandbox,serve]"
    python3 -m venv agents/venv && agents/venv/bin/pip install mini-swe-agent==2.4.6
    export K2JAX_AGENTS=$PWD/agents
    python -m k2jax.rl --config=experiments/rl/black_box.py --workdir=runs/rl-black-box
"""

from pathlib import Path

from k2jax.config import config_beside, task

AGENT = Path(__file__).with_name("agents") / "mini_text.json"


def get_config():
    """The experiment: model, objective and rates are those of smollm2.py."""
    config = config_beside(__file__, "smollm2.py")
    files = task(dataset="file_answers", options=("kinds=write+copy", "count=1000"), max_tokens=64, steps=6)
    files.scaffold = f"black_box agent='{AGENT}' seconds=120"
    config.rl.tasks = {"files": files}
    config.rl.rollout.update({"max_length": 500, "concurrency": 64})
    return config
