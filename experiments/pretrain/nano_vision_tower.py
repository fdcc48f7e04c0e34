r"""The first stage of a small Kimi K2.5: the tower learns alone, by captions, against a small, frozen text model.

Reproduces: the structure of the ViT training stage (Kimi K2.5, section 4.3, table 3), not its scale: the loss is the
cross-entropy of texts about an image; the text model is smaller than the one of the next stages, as Moonlight is. The
projector learns too, and is left behind: its width is the small model's.
Expected: not run. The first command makes the small text model.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_tower.py --workdir=runs/nano-small-text \
        --config.data.images.share="(0.0,)" --config.optimizer.frozen="('tower','projector')"
    python -m k2jax.train --config=experiments/pretrain/nano_vision_tower.py --workdir=runs/nano-tower \
        --config.init_from=runs/nano-small-text
"""

from k2jax.config.build import to_config_dict
from k2jax.config.experiments import config_beside
from k2jax.config.presets import model_preset, vision_preset


def get_config():
    """The experiment."""
    config = config_beside(__file__, "nano_vision_joint.py")
    config.model = to_config_dict(model_preset("micro"))
    config.model.vision = to_config_dict(vision_preset("nano_vision"))
    config.model.vocab = 262
    config.data.images.share = (1.0,)
    config.optimizer.frozen = ("text",)
    return config
