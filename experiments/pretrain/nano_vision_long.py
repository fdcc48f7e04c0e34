"""The last stage of a small Kimi K2.5: joint training continues with rows eight times as long, by YaRN.

Reproduces: the structure of joint long-context training (Kimi K2.5, section 4.3, table 3: 32k, then 262k tokens), not
its scale: 2,048 tokens after 256, with as many tokens a step and the same ratio of images.
Expected: not run.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_long.py --workdir=runs/nano-long
"""

from k2jax.config.experiments import config_beside


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano_vision_joint.py")
    config.init_from = "runs/nano-joint"
    config.model.yarn.factor = 8.0
    config.model.yarn.original_positions = config.data.sequence_length
    config.data.sequence_length *= 8
    config.data.images.patches *= 8
    config.train.batch_size //= 8
    config.train.steps = 200
    config.optimizer.learning_rate = 4e-4
    return config
