r"""Kimi K2.5's tower alone: MoonViT-3D learns by captions against Moonlight-16B-A3B, which is frozen, for 1T tokens.

Reproduces: the ViT training stage (Kimi K2.5, section 4.3, table 3): cross-entropy of alt texts, captions, boxes and
words, no contrastive loss, 4,096 tokens a row. Batch and rates are choices of this file, not the report's, and so is
that the projector learns with the tower. The report begins from SigLIP-SO-400M: so does this with the folder of its
Hugging Face model in config.init_tower_from (docs/vision.md); without it the tower begins at random.
Expected: not run, and not compiled.

    python -m k2jax.aot --config=experiments/pretrain/k2_5_tower.py --topology=v5p:4x4x4
    python -m k2jax.launch --config=experiments/pretrain/k2_5_tower.py --workdir=gs://my-bucket/tower \
        --tpu=v5p:4x4x4 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 \
        --config.init_tower_from=hub:google/siglip-so400m-patch14-384 --dry_run

The corpora are not public: name yours, as below; set config.init_from to Moonlight, with whose tokenizer it trains.
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="moonlight", vision="moonvit")
    config.data.sequence_length = 4096
    config.data.sources = {"images": source(kind="image_chat", path="images/*.jsonl")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.data.images.patches = 8192
    config.data.images.image_patches = 8192
    config.train.batch_size = 1024
    config.train.micro_batches = 16
    config.train.steps = round(1e12 / (4096 * 1024))
    config.train.remat = "full"
    config.optimizer.frozen = ("text",)
    config.optimizer.schedule.warmup_steps = 500
    config.parallel.expert = 8
    config.checkpoint.every = 500
    config.eval.every = 500
    config.eval.sample_tokens = 0
    return config
