r"""Kimi K2: reinforcement learning of 1.04T parameters by its whole recipe, training and rollouts on the same TPU pod.

Reproduces: K2's objective, verifiable and rubric rewards with the policy as critic, budgets, PTX, temperature decay,
tasks of moderate difficulty and partial rollouts (Kimi K2, section 3.2) on the colocated architecture (section 3.3):
training as in experiments/pretrain/k2_1t.py (16 pipeline stages, 16-way expert parallelism, ZeRO-1), the engine on the
same chips with the experts over 64 of them. The report gives no coefficients, budgets or shares: those are choices.
Expected: nothing was trained with it. The command compiles the weight sync, the training step, prefill and decode, and
says what a chip's memory holds in each phase and how long the switch takes by arithmetic; K2 reports less than 30 s.

    python -m k2jax.aot --config=experiments/rl/k2_1t.py --topology=v5p:8x8x16 --mode=sync

Name your own checkpoint, tokenizer, corpora and pass rates (docs/environments.md says which commands make the last).
"""

from k2jax.config import defaults, source, task

TOKENS = 3072  # of a response; a row has 4,096
JUDGED = {"verifier_weight": 0.0, "judge_weight": 1.0}


def get_config():
    """The experiment."""
    config = on_one_pod("k2")
    config.data.sources = {"curated": source(kind="parquet", path="curated/*.parquet")}  # of PTX
    rl = config.rl
    rl.tasks = {name: _class(*options) for name, options in CLASSES.items()}
    rl.loss.update({"ptx": 0.02, "ptx_rows": 1024})
    rl.critic.update({"share": 0.1, "max_tokens": 1024})
    rl.rollout.token_cap = 1024
    return config


def on_one_pod(method, **architecture):
    """Kimi K2 by a method of reinforcement learning, training and engine on the same chips; no tasks are chosen."""
    config = defaults("rl", model="k2", method=method, **architecture)
    config.init_from = "gs://my-bucket/k2-sft"
    config.model.yarn.factor = 1.0
    config.data.sequence_length = 4096
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.rl.rollout.update({"prompts": 2048, "samples": 8, "slots": 16384, "max_length": 4096})
    config.rl.rollout.update({"data": 16, "expert": 64, "offload_state": True})
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.parallel.update({"stage": 16, "virtual_stages": 4, "expert": 16, "expert_chunks": 2})
    config.optimizer.learning_rate = 2e-6
    config.router.bias_rate = config.router.bias_rate_final = 0.0  # the routes of the policy rest
    config.eval.sample_tokens = 0
    return config


CLASSES = {  # dataset, options, weight, budget
    "math": ("math", ("path=tasks/math.jsonl",), 3.0, TOKENS, {"pass_rates": "tasks/math_rates.json"}),
    "logic": ("reasoning_gym", ("generators=all", "count=100000"), 1.0, 2048, {}),
    "instructions": ("instructions", ("count=100000",), 1.0, 1024, {}),
    "open_ended": ("instructions", ("constraints=1", "count=100000", "seed=1"), 1.0, 1024, JUDGED),
    "code": ("code", ("path=tasks/code.jsonl",), 2.0, TOKENS, {"pass_rates": "tasks/code_rates.json"}),
    "engineering": ("swe", ("path=tasks/issues.jsonl",), 2.0, TOKENS, {"steps": 50, "episode_tokens": TOKENS}),
    "terminal": ("terminal", ("count=100000",), 1.0, TOKENS, {"episode_tokens": TOKENS}),
    "search": ("search_world", ("count=100000",), 1.0, TOKENS, {"episode_tokens": TOKENS}),
    "desk": ("tau2", ("count=100000",), 1.0, TOKENS, {"episode_tokens": TOKENS}),
}


def _class(dataset, options, weight, budget, more):
    """A class of tasks with a budget of tokens, beyond which an answer loses, and a temperature that falls."""
    decay = {"temperature": 1.0, "temperature_final": 0.6, "temperature_decay": 0.8}
    budgeted = {"max_tokens": budget, "overlong_penalty": 0.5}
    return task(dataset=dataset, options=options, weight=weight, **budgeted, **decay, **more)
