"""A Kimi K2 of a million parameters learns to give wide questions to sub-agents that work at once, on a laptop's CPU.

Reproduces: the structure of Kimi K2.5's PARL (K2.5, section 3), not its scale: an orchestrator is trained, its
sub-agents are the frozen start with an engine of its own, critical steps are the budget, and rewards for parallel and
finished work are annealed to 0. A question asks for the numbers of two to eight keys, each two or three calls away; the
budget of 14 critical steps cuts serial work at six and eight keys. No prompt asks for parallel work. Model, objective
and rates are those of nano.py.
Expected: from the first to the last seven of 60 iterations, over three seeds, the share of right keys rises from 0.47
(0.38 to 0.61) to 0.70 (0.57 to 0.88), parallelism from 1.2 to 3.1, and critical steps fall from 10.4 to 6.2 (7 minutes
on two CPU cores). The study experiments/reproduce/swarm.py has the same run beside single agents and ablations.

    python -m k2jax.env.demonstrate --to=runs/lookups.jsonl --dataset=lookups --parallel=0.08 --count=18000
    python -m k2jax.env.demonstrate --to=runs/single-lookups.jsonl --dataset=lookups --kinds=wide1 --count=6000
    python -m k2jax.train --config=experiments/sft/swarm_nano.py --workdir=runs/sft-swarm-nano
    python -m k2jax.rl --config=experiments/rl/swarm_nano.py --workdir=runs/rl-swarm-nano
"""

from k2jax.config import config_beside, role, task

SWARM = "swarm form=compact steps=5 most=12"
"""Sub-agents of five steps: an answer after as many calls as the longest chain of keys has, and one to spare."""


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.init_from = "runs/sft-swarm-nano"
    config.data.chat_format = "compact"
    config.data.sequence_length = 352
    config.rl.roles.helper = role(checkpoint=config.init_from, max_tokens=24, temperature=0.0, slots=128)
    config.rl.tasks = {
        "lookups": task(
            dataset="lookups",
            options=("count=8000",),
            max_tokens=128,
            steps=48,
            critical_steps=14,
            tools=("store", f"{SWARM} role=helper"),
        )
    }
    config.rl.rollout.update({"prompts": 16, "max_length": 352})
    config.rl.updates = 2
    config.rl.parl.update({"parallel": 0.3, "finish": 0.3, "agents": 4, "decay": 0.6})
    config.rl.eval_prompts = 64
    config.rl.eval_samples = 1
    config.train.steps = 60
    config.eval.every = 20
    return config
