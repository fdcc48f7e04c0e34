r"""Kimi K2: 1.04T parameters, 32B active, on a TPU pod.

Reproduces: pretraining at 4k tokens (Kimi K2, sections 2.1 to 2.5): MuonClip, WSD schedule (500 steps of warm-up, 10T
tokens at 2e-4, 5.5T of cosine decay to 2e-5), then annealing on 400B tokens, 67M tokens a step; 16 pipeline stages with
virtual stages, 16-way expert parallelism, ZeRO-1. The long-context part is k2_1t_32k.py.
Expected: nothing was trained with it. On v5p:8x8x16 (1,024 chips) the first command says 71.7 of 95 GB a device, and
estimates 77.6 s a step, 36.5 % MFU; on tpu7x:8x8x8 (512 chips) 74.1 of 96 GB, 58.4 s, 19.3 % (docs/aot.md).

    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16
    python -m k2jax.launch --config=experiments/pretrain/k2_1t.py --workdir=gs://my-bucket/k2 \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

The report's corpus is not public: name yours, and the tokenizer's file, as below.
"""

from k2jax.config import defaults, source

TOKENS_PER_STEP = 4096 * 16384


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="k2")
    config.model.yarn.factor = 1.0  # the context is extended later
    config.data.sequence_length = 4096
    config.data.sources = {"web": source(kind="parquet", path="corpus/*.parquet")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.train.steps = round((15.5e12 + 400e9) / TOKENS_PER_STEP)
    schedule = config.optimizer.schedule
    schedule.warmup_steps = 500
    schedule.decay_shape = "cosine"
    schedule.decay_steps = round(5.5e12 / TOKENS_PER_STEP)
    schedule.anneal_steps = round(400e9 / TOKENS_PER_STEP)
    schedule.anneal_to = 0.0435  # 8.7e-6: the way from 2e-5 to 7e-6 continues over 60B tokens at 32k
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.expert_chunks = 2
    config.checkpoint.every = 500
    config.eval.every = 500
    config.eval.sample_tokens = 0
    return config
