r"""Joint training of a small Kimi K2 with a tower: text and images at a constant ratio, all parts learn.

Reproduces: the structure of Kimi K2.5's joint pretraining (section 4.3, table 3), not its scale: a decoder that has
learned text continues with a tenth of its tokens from images (early fusion). Pictures are drawn with exact labels.
Expected: not run as a chain of stages; the shares of tokens are counted in a test. The first command makes the text
model, the second is the short stage in which the projector learns alone, behind the tower of nano_vision_tower.py.

    python -m k2jax.train --config=experiments/pretrain/nano_vision_joint.py --workdir=runs/nano-text \
        --config.data.images.share="(0.0,)" --config.optimizer.frozen="('tower','projector')"
    python -m k2jax.train --config=experiments/pretrain/nano_vision_projector.py --workdir=runs/nano-projector
    python -m k2jax.train --config=experiments/pretrain/nano_vision_joint.py --workdir=runs/nano-joint \
        --config.init_from=runs/nano-projector

Mid and late fusion (table 1): --config.data.images.share="(0.0,0.2)" --config.data.images.share_from="(0.0,0.5)", and
(0.0,0.5) from (0.0,0.8), from a text model or from none.
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment; the other stages of the nano size start from it."""
    config = defaults("pretrain", model="nano", vision="nano_vision")
    shapes = {"pictures": ("describe", "locate", "count"), "max_documents": 30_000, "side": 84}
    words = {"pictures": ("read",), "max_documents": 30_000, "side": 112, "height": 28}
    config.data.sources = {
        "text": source(kind="stdlib"),
        "shapes": source(kind="synthetic_images", **shapes),
        "words": source(kind="synthetic_images", **words),
    }
    config.model.vocab = 262  # bytes, two tokens around documents, four around images
    config.data.tokenizer.kind = "bytes"
    config.data.tokenizer.media = True
    config.data.chat_format = "plain"
    config.data.sequence_length = 256
    config.data.images.share = (0.1,)
    config.data.images.patches = 144  # four pictures of shapes, nine of words
    config.data.held_out = 0.01
    config.train.steps = 1000
    config.train.batch_size = 16
    config.optimizer.learning_rate = 3e-3
    config.optimizer.tower_rate = 0.3
    config.optimizer.projector_rate = 0.5
    config.router.bias_rate = 5e-2  # the report's 1e-3 would not balance anything in so few steps
    config.router.bias_rate_final = 1e-3
    config.eval.every = 250
    config.eval.rows = 32
    return config
