r"""K2 mini: Kimi K2's architecture at about 200M active parameters, for one v5e-8.

Reproduces: no figure of the report; its recipe in small: MLA with a query latent, 64 experts of which 8 are active, one
shared, one leading dense layer, MuonClip, WSD.
Expected: nothing was trained with it. On v5e:2x4 the first command says 12.5 of 16 GB a device, and estimates 1.77 s a
step of 524k tokens, 27.0 % MFU; the last runs it on the slice itself.

    python -m k2jax.aot --config=experiments/pretrain/k2_mini.py --topology=v5e:2x4
    python -m k2jax.launch --config=experiments/pretrain/k2_mini.py --workdir=gs://my-bucket/mini \
        --tpu=v5e-8 --project=my-project --zone=us-west4-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run
    python -m k2jax.train --config=experiments/pretrain/k2_mini.py --workdir=runs/mini

The corpus is the standard library's source code, which is small: name your own for more than a trial.
"""

from k2jax.config import defaults


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="k2")
    config.model.update(
        {"layers": 12, "d_model": 1024, "heads": 8, "dense_ffn": 4096, "vocab": 32768, "init_std": 0.02}
    )
    config.model.mla.update({"q_lora_rank": 512, "kv_lora_rank": 256})
    config.model.moe.update({"expert_ffn": 512, "experts": 64})
    config.model.yarn.factor = 1.0
    config.data.sequence_length = 2048
    config.data.tokenizer.vocab = 32768
    config.train.batch_size = 256
    config.train.micro_batches = 16
    config.train.steps = 20000
    config.train.remat = "selective"
    config.optimizer.learning_rate = 2e-3
    config.parallel.expert = 8
    config.eval.every = 500
    config.checkpoint.every = 500
    return config
