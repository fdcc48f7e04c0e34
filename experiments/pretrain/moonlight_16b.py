r"""Moonlight-16B-A3B: 16B parameters, 3B active, on 64 chips.

Reproduces: the architecture of Moonlight (arXiv:2502.16982), with which Muon was scaled up before Kimi K2, at 8k
tokens; MuonClip in place of plain Muon. Batch and rates are of that order, not a copy of its schedule.
Expected: nothing was trained with it. On v5p:4x4x4 the first command says 48.6 of 95 GB a device, and estimates 24.6 s
a step of 16.8M tokens, 39.2 % MFU; with train.remat=selective it does not fit (102 GB).

    python -m k2jax.aot --config=experiments/pretrain/moonlight_16b.py --topology=v5p:4x4x4
    python -m k2jax.launch --config=experiments/pretrain/moonlight_16b.py --workdir=gs://my-bucket/moon \
        --tpu=v5p:4x4x4 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

Name your corpus and the tokenizer's file, as below.
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="moonlight")
    config.data.sequence_length = 8192
    config.data.sources = {"web": source(kind="parquet", path="corpus/*.parquet")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 2048
    config.train.micro_batches = 32
    config.train.steps = 300_000
    config.train.remat = "full"
    config.optimizer.learning_rate = 4.2e-4
    config.optimizer.schedule.warmup_steps = 2000
    config.optimizer.schedule.decay_shape = "cosine"
    config.parallel.expert = 8
    config.checkpoint.every = 1000
    config.eval.every = 1000
    config.eval.sample_tokens = 0
    return config
