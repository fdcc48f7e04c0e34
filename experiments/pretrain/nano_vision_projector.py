"""The second stage of a small Kimi K2.5: the projector learns alone, briefly, between the tower and the large decoder.

Reproduces: the structure of the second stage of alignment (Kimi K2.5, section 4.3), not its scale: the tower comes from
nano_vision_tower.py, the decoder from the first command of nano_vision_joint.py, and both are frozen.
Expected: not run.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_projector.py --workdir=runs/nano-projector
"""

from k2jax.config.experiments import config_beside


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano_vision_joint.py")
    config.init_from = "runs/nano-text"
    config.init_tower_from = "runs/nano-tower"
    config.data.images.share = (1.0,)
    config.optimizer.frozen = ("text", "tower")
    config.train.steps = 200
    return config
