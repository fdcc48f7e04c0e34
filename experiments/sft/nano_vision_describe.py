"""A small Kimi K2 that has learned text learns to see: it describes pictures and reads words.

Reproduces: the order of Kimi K2.5's stages (section 4.3), text first and captions before questions, not its scale.
Descriptions name every shape and its box, so that most tokens of an answer ask for what a feature holds; with them the
model learns to look. Tower, projector and decoder learn together. ``nano_vision.py`` continues with questions; the rate
stays constant until then.
Expected: a held-out loss of 0.32 a token.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_text.py --workdir=runs/nano-vision-text
    python -m k2jax.train --config=experiments/sft/nano_vision_describe.py --workdir=runs/sft-nano-vision-describe
"""

from k2jax.config.experiments import config_beside


def get_config():
    """The experiment; model, sizes of pictures and optimizer are those of the second stage."""
    config = config_beside(__file__, "nano_vision.py")
    config.init_from = "runs/nano-vision-text"
    described, words = config.data.sources.describe, config.data.sources.words
    described.weight, words.weight = 1.5, 1.0
    config.data.sources = {"describe": described, "words": words}
    config.train.steps = 1000
    config.optimizer.schedule.decay_steps = 1
    return config
