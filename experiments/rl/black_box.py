"""SmolLM2-135M-Instruct learns to leave files in a folder, through mini-swe-agent, which nobody changed.

Reproduces: how KAT-Coder-V2 trains through agents that it does not own (KAT-Coder-V2, section 2; Kimi K2.5, appendix
D), not its scale or its tasks. mini-swe-agent runs in a sandbox with a prompt of its own of some 60 tokens
(experiments/rl/agents/mini_text.json); its only way out is its rollout at the gateway.
Expected: not measured; every episode starts a Python that imports for some seconds, so a run wants many cores.

    pip install -e ".[smol,sandbox,serve]"
    python3 -m venv agents/venv && agents/venv/bin/pip install mini-swe-agent==2.4.6 mcp==2.3.0
    export K2JAX_AGENTS=$PWD/agents
    python -m k2jax.rl --config=experiments/rl/black_box.py --workdir=runs/rl-black-box
"""

from pathlib import Path

from k2jax.config import defaults, task

AGENT = Path(__file__).with_name("agents") / "mini_text.json"


def get_config():
    """The experiment."""
    config = defaults("rl", model="smollm2_135m")
    config.init_from = "smollm2"
    config.data.sequence_length = 512
    files = task(dataset="file_answers", options=("kinds=write+copy", "count=1000"), max_tokens=64, steps=6)
    files.scaffold = f"black_box agent='{AGENT}' seconds=120"
    config.rl.tasks = {"files": files}
    config.rl.rollout.prompts = 8
    config.rl.rollout.samples = 8
    config.rl.rollout.slots = 16
    config.rl.rollout.max_length = 500
    config.rl.eval_prompts = 16
    config.rl.eval_samples = 4
    config.train.steps = 50
    config.train.batch_size = 4
    config.optimizer.name = "muonclip"
    config.optimizer.learning_rate = 2e-5
    config.optimizer.weight_decay = 0.0
    config.checkpoint.every = 5
    config.eval.every = 10
    return config
