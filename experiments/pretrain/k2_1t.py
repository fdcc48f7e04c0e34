r"""Kimi K2: 1.04T parameters, 32B active, on a TPU pod.

Reproduces: all of pretraining (Kimi K2, sections 2.1 to 2.5) in one run of four phases: MuonClip; 500 steps of warm-up
and 10T tokens at 2e-4, 5.5T of cosine decay to 2e-5, annealing to 7e-6 over 400B tokens at 4k and 60B at 32k, 67M
tokens a step; 16 pipeline stages with virtual stages, 16-way expert parallelism, ZeRO-1. The rotary frequencies of the
last phase are YaRN's for 128k (factor 32 over 4,096 positions), as in the published model; its mesh is its own.
Expected: nothing was trained with it. On v5p:8x8x16 (1,024 chips) the first command says 71.7 of 95 GB a device, and
estimates 77.6 s a step, 36.5 % MFU; on tpu7x:8x8x8 (512 chips) 74.1 of 96 GB, 58.4 s, 19.3 % (docs/aot.md). The second
says 78.9 of 95 GB, 141 s, 31.0 % of rows of 32k. Their gradients add up in bfloat16: in float32 it takes 98.8 GB.

    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16
    python -m k2jax.aot --config=experiments/pretrain/k2_1t.py --topology=v5p:8x8x16 --phase=long
    python -m k2jax.launch --config=experiments/pretrain/k2_1t.py --workdir=gs://my-bucket/k2 \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

The report's corpus is not public: name yours, and the tokenizer's file, as below. Sources of annealing and of long
documents are further entries of config.data.sources, and the mixture of a phase (docs/phases.md).
"""

from itertools import accumulate

from k2jax.config import defaults, phase, source

TOKENS_PER_STEP = 4096 * 16384
TOKENS = 10e12, 5.5e12, 400e9, 60e9
"""Of every phase."""


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="k2")
    config.model.yarn.factor = 1.0  # the context is extended in the last phase
    config.data.sequence_length = 4096
    config.data.sources = {"web": source(kind="parquet", path="corpus/*.parquet")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 16384
    config.train.micro_batches = 256
    config.optimizer.learning_rate = 2e-4
    config.optimizer.schedule.warmup_steps = 500
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.expert_chunks = 2
    config.checkpoint.every = 500
    config.eval.every = 500
    config.eval.sample_tokens = 0
    decay, anneal, long, end = (round(tokens / TOKENS_PER_STEP) for tokens in accumulate(TOKENS))
    config.train.steps = end
    config.phases.constant = phase(rate="constant")
    config.phases.decay = phase(begin=decay, rate="cosine", rate_to=2e-5)
    config.phases.anneal = phase(begin=anneal, rate="linear", rate_to=8.7e-6)  # at 7e-6 after the 60B tokens at 32k
    config.phases.long = phase(
        begin=long,
        rate="linear",
        rate_to=7e-6,
        overrides=(
            "data.sequence_length=32768",
            "train.batch_size=2048",
            "train.micro_batches=128",
            "train.remat=full",
            "train.gradient_dtype=bfloat16",  # float32 sums over micro-batches are 20 GB
            "parallel.context=4",  # a whole row on one device needs more HBM than there is
            "model.yarn.factor=32",
        ),
    )
    return config
