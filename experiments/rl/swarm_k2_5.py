r"""Kimi K2.5: an orchestrator of 1.04T parameters learns to use frozen sub-agents of its size, on one TPU pod.

Reproduces: PARL (Kimi K2.5, section 3) on wide questions over a world of documents: the orchestrator is trained, its
sub-agents are its start with an engine of their own, critical steps are the budget, and the rewards of parallel and
finished work are annealed to 0. Rows have 32,768 tokens, laid out as in the last phase of
experiments/pretrain/k2_1t.py. In a rollout both engines lie on all chips, the experts of each over 128 of them, and
take turns; there are two sub-agents for each orchestrator. The decoder alone is trained, since the tasks show no
images. The report gives no coefficients, budgets of tokens or ratio of engines: those are choices.
Expected: nothing was trained with it. On v5p:8x8x16 (1,024 chips) the first command says 78.9 of 95 GB a device in
training, 55.6 in the switch and at most 93.7 in a rollout (the sub-agents' prefill beside the other engine), and
estimates 3.5 s from training to the rollout; 11 minutes of processor time. The second compares ratios of engines by
simulation.

    python -m k2jax.aot --config=experiments/rl/swarm_k2_5.py --topology=v5p:8x8x16 --mode=sync
    python -m k2jax.bench instances

Name your own checkpoint, tokenizer and tasks.
"""

from pathlib import Path

from k2jax.config import load_experiment, role, task

base = load_experiment(Path(__file__).with_name("k2_1t.py"))
TOKENS = 32768
SWARM = ("search_browser", "swarm role=helper steps=50 live=20 most=100")


def get_config():
    """The experiment."""
    config = base.on_one_pod("k2.5")
    config.init_from = "/gcs/my-bucket/k2.5-sft"
    config.model.yarn.factor = 32.0
    config.data.sequence_length = TOKENS
    config.train.update({"batch_size": 2048, "micro_batches": 128, "remat": "full", "gradient_dtype": "bfloat16"})
    config.parallel.context = 4
    rl = config.rl
    rl.roles.helper = role(checkpoint=config.init_from, max_tokens=2048, slots=2048)
    rl.rollout.update({"prompts": 256, "slots": 1024, "max_length": TOKENS})
    rl.rollout.update({"data": 8, "expert": 128})
    rl.tasks = {
        "wide": task(
            dataset="search_world",
            options=("kinds=wide+download+long", "count=100000"),
            tools=SWARM,
            components=("swarm date=2026-01-28",),
            critical_steps=100,
            max_tokens=4096,
            episode_tokens=24576,
        )
    }
    rl.parl.update({"parallel": 0.3, "finish": 0.3, "agents": 8, "hold": 0.1, "hold_until": 2.0, "decay": 0.5})
    return config
