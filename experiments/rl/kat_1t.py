r"""KAT-Coder-V2's reinforcement learning in agents, on Kimi K2's architecture of 1.04T parameters and one TPU pod.

Reproduces: turn-level GSPO with IcePop, averaged log-probabilities and Tree Training (KAT-Coder-V2, section 3.3) on
tasks of software engineering and terminals; training and engine share the chips as in k2_1t.py. The report's model is
another one, and its band and learning rate are not known: GSPO's band, and rates of a common size.
Expected: nothing was trained with it. It may be compiled as k2_1t.py is:

    python -m k2jax.aot --config=experiments/rl/kat_1t.py --topology=v5p:8x8x16 --mode=sync

Name your own checkpoint, tokenizer and tasks; scaffold="black_box agent=FILE" puts an agent of yours in the place of
the project's own loop (docs/gateway.md).
"""

from k2jax.config import defaults, task


def get_config():
    """The experiment."""
    config = defaults("rl", model="k2", method="kat")
    config.init_from = "gs://my-bucket/k2-sft"
    config.model.yarn.factor = 1.0
    config.data.sequence_length = 4096
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    rl = config.rl
    budget = {"max_tokens": 3072, "episode_tokens": 3072}
    rl.tasks = {
        "issues": task(dataset="swe", options=("path=tasks/issues.jsonl",), weight=3.0, steps=50, **budget),
        "terminal": task(dataset="terminal", options=("count=100000",), steps=30, **budget),
        "code": task(dataset="code", options=("path=tasks/code.jsonl",), max_tokens=3072),
    }
    rl.updates = 4
    rl.skip_flat_groups = True
    rl.rollout.update({"prompts": 2048, "samples": 8, "slots": 16384, "max_length": 4096})
    rl.rollout.update({"data": 16, "expert": 64, "offload_state": True})
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.parallel.update({"stage": 16, "virtual_stages": 4, "expert": 16, "expert_chunks": 2})
    config.optimizer.learning_rate = 2e-6
    config.router.bias_rate = config.router.bias_rate_final = 0.0  # the routes of the policy rest
    config.eval.sample_tokens = 0
    return config
