r"""Kimi K2.5: joint reinforcement learning on text and images of 1.04T parameters with a tower, on one TPU pod.

Reproduces: K2.5's objective with rewards by domain (Kimi K2.5, equation 1) and Toggle (section 4.4), on text and visual
tasks together; training and engine share the chips as in k2_1t.py. The report gives no coefficients: those are choices.
Expected: nothing was trained with it.

    python -m k2jax.rl --config=experiments/rl/k2_5_1t.py --workdir=gs://my-bucket/k2.5-rl

Name your own checkpoint, tokenizer and tasks.
"""

from pathlib import Path

from k2jax.config import load_experiment, task

base = load_experiment(Path(__file__).with_name("k2_1t.py"))


def get_config():
    """The experiment."""
    config = base.on_one_pod("k2.5", vision="moonvit")
    config.init_from = "gs://my-bucket/k2.5-sft"
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
    return config
