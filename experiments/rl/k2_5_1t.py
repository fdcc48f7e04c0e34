r"""Kimi K2.5: joint reinforcement learning on text and images of 1.04T parameters with a tower, on one TPU pod.

Reproduces: K2.5's objective with rewards by domain (Kimi K2.5, equation 1) and Toggle (section 4.4), on text and visual
tasks together; training and engine share the chips as in k2_1t.py. The report gives no coefficients: those are choices.
Expected: nothing was trained with it.

    python -m k2jax.rl --config=experiments/rl/k2_5_1t.py --workdir=gs://my-bucket/k2.5-rl

Name your own checkpoint, tokenizer and tasks.
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="k2", vision="moonvit", method="k2.5")
    config.init_from = "gs://my-bucket/k2.5-sft"
    config.model.yarn.factor = 1.0
    config.data.sequence_length = 4096
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    rl = config.rl
    rl.tasks = {
        "math": task(dataset="math", options=("path=tasks/math.jsonl",), weight=2.0, max_tokens=3072),
        "code": task(dataset="code", options=("path=tasks/code.jsonl",), weight=2.0, max_tokens=3072),
        "logic": task(dataset="reasoning_gym", options=("generators=all", "count=20000"), max_tokens=2048),
        "pictures": task(dataset="pictures", options=("count=20000", "side=448"), max_tokens=1024),
        "crops": task(dataset="picture_tools", options=("count=20000", "show=true"), max_tokens=3072),
    }
    rl.loss.per_domain = True
    rl.toggle.period = 20
    rl.rollout.update({"prompts": 2048, "samples": 8, "slots": 16384, "max_length": 4096})
    rl.rollout.update({"data": 16, "expert": 64, "offload_state": True})
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.parallel.update({"stage": 16, "virtual_stages": 4, "expert": 16, "expert_chunks": 2})
    config.optimizer.learning_rate = 2e-6
    config.router.bias_rate = config.router.bias_rate_final = 0.0  # the routes of the policy rest
    config.eval.sample_tokens = 0
    return config
