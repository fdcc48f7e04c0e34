r"""A Kimi K2 of a million parameters learns to call unseen tools in simulated worlds, on a laptop's CPU.

Reproduces: the structure of Kimi K2's agentic training (section 3.1.1, then 3.2), not its scale: a synthesis writes
worlds, tasks and judged dialogues; the model is fine-tuned on what the judge kept, and then acts in the worlds, whose
last state gives the reward. A tenth of the tasks is held out. The worlds are small ones, for a model of characters.
Expected: not measured; docs/reproductions.md says what was tried for the study synthetic_tools, which has the same runs
on tools that no training has shown.

    python -m k2jax.synthesize --config=experiments/synthesis/small_worlds.py --workdir=runs/small-worlds
    python -m k2jax.reproduce synthetic_tools --workdir=runs/synthetic_tools --only=seed0_pretrained
    python -m k2jax.train --config=experiments/sft/worlds_nano.py --workdir=runs/sft-worlds-nano
    python -m k2jax.rl --config=experiments/rl/worlds_nano.py --workdir=runs/rl-worlds-nano
"""

from k2jax.config import config_beside, task


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.init_from = "runs/sft-worlds-nano"
    config.data.chat_format = "compact"
    options = ("path=runs/small-worlds/tasks.jsonl",)
    config.rl.tasks = {"worlds": task(dataset="worlds", options=options, max_tokens=24, steps=3)}
    config.rl.rollout.update({"prompts": 16, "max_length": 160})
    config.rl.updates = 2
    config.train.steps = 20
    config.eval.every = 10
    return config
