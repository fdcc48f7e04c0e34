r"""Kimi K2.5: Kimi K2 and MoonViT-3D learn text and images together, with a tenth of the tokens from images throughout.

Reproduces: joint pretraining (Kimi K2.5, section 4.3, table 3) at the published sizes of decoder, tower and projector:
early fusion at a constant ratio, 4,096 tokens a row, 15T tokens, from a nearly finished Kimi K2, the encoder decoupled
from the decoder (section 4.5.1). The batch of 16.8M tokens and its rates are choices of this file, not the report's.
Expected: not run, nothing was trained with it. On v5p:8x8x16 (1,024 chips) the first command said 75.8 of 95 GB a
device with one row of the tower on each (data.images.rows=0.25) and 84.3 with four, and estimated 22.0 s a step, 32.3 %
MFU; the tower's part is 0.080 s a row (docs/aot.md). With two rows, as here, it was not compiled.

    python -m k2jax.aot --config=experiments/pretrain/k2_5_joint.py --topology=v5p:8x8x16
    python -m k2jax.launch --config=experiments/pretrain/k2_5_joint.py --workdir=gs://my-bucket/k2.5 \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

The corpora are not public: name yours, and the tokenizer's file, as below. The short stage before it, in which the
projector learns alone between Kimi K2 and the tower of k2_5_tower.py, is this file with config.init_from,
config.init_tower_from and --config.optimizer.frozen="('text','tower')"; set config.init_from to its workdir.
"""

from k2jax.config import defaults, source

TOKENS_PER_STEP = 4096 * 4096


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="k2.5", vision="moonvit")
    config.model.yarn.factor = 1.0  # k2_5.py goes on and extends the context
    config.data.sequence_length = 4096
    config.data.sources = {
        "web": source(kind="parquet", path="corpus/*.parquet"),
        "images": source(kind="image_chat", path="images/*.jsonl"),
    }
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.data.images.share = (0.1,)
    config.data.images.patches = 4096  # of a row, 1,024 features: room for a quarter of the tokens
    config.data.images.rows = 0.5  # a tenth of the tokens are in 36 % of the rows, the rest of which is text
    config.data.images.image_patches = 4096
    config.train.batch_size = 4096
    config.train.micro_batches = 64
    config.train.steps = round(15e12 / TOKENS_PER_STEP)
    config.optimizer.schedule.warmup_steps = 500
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.expert_chunks = 2
    config.checkpoint.every = 500
    config.eval.every = 500
    config.eval.sample_tokens = 0
    return config
