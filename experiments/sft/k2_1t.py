r"""Kimi K2's supervised fine-tuning on 1,024 v5p chips.

Reproduces: supervised fine-tuning with Muon, as pretraining used it (Kimi K2, section 3.1). The report gives neither
rates nor batches: those here are placeholders of a common size, for the memory and time of a step.
Expected: nothing was trained with it. Rows, mesh and micro-batches are those of the last phase of
experiments/pretrain/k2_1t.py, of which there are fewer a step. By the first command it takes 78.9 of a device's 95 GB,
and an estimated 38.4 s a step, 28.5 % MFU.

    python -m k2jax.aot --config=experiments/sft/k2_1t.py --topology=v5p:8x8x16
    python -m k2jax.launch --config=experiments/sft/k2_1t.py --workdir=gs://my-bucket/k2-sft \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run
"""

from k2jax.config import defaults, source


def get_config():
    """The experiment."""
    config = defaults("sft", model="k2")
    config.init_from = "/gcs/my-bucket/k2"
    config.data.sequence_length = 32768
    config.data.sources = {
        "chats": source(kind="chat", path="chats/*.jsonl", weight=3.0),
        "agents": source(kind="chat", path="agents/*.jsonl"),
    }
    config.data.tokenizer.kind = "file"
    config.data.tokenizer.path = "tokenizer.json"
    config.train.batch_size = 512
    config.train.micro_batches = 32
    config.train.steps = 2000
    config.train.remat = "full"
    config.train.gradient_dtype = "bfloat16"
    config.optimizer.learning_rate = 1e-5
    schedule = config.optimizer.schedule
    schedule.kind = "cosine"
    schedule.warmup_steps = 50
    config.parallel.stage = 16
    config.parallel.virtual_stages = 4
    config.parallel.expert = 16
    config.parallel.context = 4
    config.parallel.expert_chunks = 2
    config.checkpoint.every = 100
    config.eval.every = 100
    config.eval.sample_tokens = 0
    return config
