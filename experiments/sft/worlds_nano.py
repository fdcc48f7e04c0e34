r"""A Kimi K2 of a million parameters learns to call tools from a synthesis of dialogues, on a laptop's CPU.

Reproduces: fine-tuning on synthetic trajectories that a judge has kept (Kimi K2, section 3.1.1), not its scale. The
tools stand in the prompt, and have other names in every world; the start has learnt to copy words that it has never
seen, in a pretraining of the study synthetic_tools. Model and rates are those of nano.py.
Expected: not measured; docs/reproductions.md says what was tried for the study synthetic_tools.

    python -m k2jax.synthesize --config=experiments/synthesis/small_worlds.py --workdir=runs/small-worlds
    python -m k2jax.reproduce synthetic_tools --workdir=runs/synthetic_tools --only=seed0_pretrained
    python -m k2jax.train --config=experiments/sft/worlds_nano.py --workdir=runs/sft-worlds-nano
"""

from k2jax.config import config_beside, source


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano.py")
    config.data.sources = {"dialogues": source(kind="chat", path="runs/small-worlds/sft.jsonl")}
    config.data.chat_format = "compact"
    config.init_from = "runs/synthetic_tools/seed0_pretrained"
    config.train.steps = 160
    config.train.patience = 0
    return config
