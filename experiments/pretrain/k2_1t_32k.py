r"""Kimi K2's long-context activation: 60B tokens at 32k after k2_1t.py, the context then extended by YaRN.

Reproduces: the last stage of pretraining (Kimi K2, section 2.5): batches of 67M tokens as before, rates on to 7e-6.
The rotary frequencies are YaRN's for 128k (factor 32 over 4,096 positions), as in the published model.
Expected: nothing was trained with it. It fits v5p:8x8x16, by the first command: 78.9 of 95 GB a device, an estimated
141 s a step, 31.0 % MFU. Gradients add up in bfloat16: in float32 it takes 98.8 GB.

    python -m k2jax.aot --config=experiments/pretrain/k2_1t_32k.py --topology=v5p:8x8x16
    python -m k2jax.launch --config=experiments/pretrain/k2_1t_32k.py --workdir=gs://my-bucket/k2-32k \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

It starts from the 4k run's parameters: set config.init_from to its workdir.
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="k2")
    config.data.sequence_length = 32768
    config.data.sources = {"web": source(kind="parquet", path="corpus/*.parquet")}
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 2048
    config.train.micro_batches = 128
    config.train.steps = round(60e9 / (32768 * 2048))
    config.train.remat = "full"
    config.train.gradient_dtype = "bfloat16"  # float32 sums over micro-batches are 20 GB
    config.optimizer.learning_rate = 8.7e-6
    schedule = config.optimizer.schedule
    schedule.warmup_steps = 0
    schedule.decay_steps = config.train.steps
    schedule.floor = 7 / 8.7
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.context = 4  # a whole row on one device needs more HBM than there is
    config.parallel.expert_chunks = 2
    config.checkpoint.every = 100
    config.eval.every = 100
    config.eval.sample_tokens = 0
    return config
