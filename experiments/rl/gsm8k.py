r"""Qwen2.5-0.5B-Instruct learns the word problems of GSM8K, by verifiable rewards.

Reproduces: Kimi K2.5's objective (K2.5, equation 1) on a released instruction model and the problems on which most
libraries are shown. The final answer in ``\boxed{}`` is compared as an expression; problems of the test split are held
out, and 500 of them are asked greedily before, during and after the run.
Expected: not measured, for want of the weights and an accelerator; a test trains a tiny model of the architecture. An
iteration samples 512 answers of up to 400 tokens.

    pip install -e ".[hub,data,env]"
    python -m k2jax.rl --config=experiments/rl/gsm8k.py --workdir=runs/rl-gsm8k

On a machine without a network, copy the model's folder and the problems there (``{"question": ..., "answer": "...####
72"}`` a line; a tenth of them is held out):

    python -m k2jax.rl --config=experiments/rl/gsm8k.py --workdir=runs/rl-gsm8k \
        --config.init_from=path/to/Qwen2.5-0.5B-Instruct --config.rl.tasks.gsm8k.options="('path=gsm8k.jsonl',)"
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="qwen2.5_0.5b")
    config.init_from = "hub:Qwen/Qwen2.5-0.5B-Instruct"
    config.data.sequence_length = 1024
    config.rl.tasks = {"gsm8k": task(dataset="math", options=("hub=openai/gsm8k", "subset=main"), max_tokens=400)}
    config.rl.rollout.update({"prompts": 64, "samples": 8, "slots": 256, "max_length": 768})
    config.rl.updates = 2
    config.rl.skip_flat_groups = True
    config.rl.eval_prompts = 500
    config.rl.eval_samples = 1
    config.train.steps = 100
    config.train.batch_size = 16
    config.train.remat = "selective"
    config.optimizer.name = "muon"  # the released model was not trained with QK-Clip
    config.optimizer.learning_rate = 2e-5
    config.optimizer.weight_decay = 0.0
    config.optimizer.schedule.warmup_steps = 5
    config.checkpoint.every = 10
    config.eval.every = 20
    return config
