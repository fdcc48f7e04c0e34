r"""Kimi K2.5's long context: joint training of text and images continues with rows of 32k tokens for 500B tokens.

Reproduces: joint long-context mid-training (Kimi K2.5, section 4.3, table 3), its part at 32,768 tokens, extended by
YaRN; the part at 262,144 (200B tokens) asks for a longer row and more devices along ``context``. Layout as in
k2_1t_32k.py. Rates and batch are choices of this file, not the report's.
Expected: not run, and not compiled.

    python -m k2jax.aot --config=experiments/pretrain/k2_5_long.py --topology=v5p:8x8x16
    python -m k2jax.launch --config=experiments/pretrain/k2_5_long.py --workdir=gs://my-bucket/k2.5-32k \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

It starts from the joint run's parameters: set config.init_from to its workdir.
"""

from k2jax.config import model_preset
from k2jax.config.experiments import config_beside


def get_config():
    """The experiment."""
    config = config_beside(__file__, "k2_5_joint.py")
    config.model.yarn.factor = model_preset("k2").yarn.factor
    config.data.sequence_length = 32768
    config.data.images.patches = 8192
    config.data.images.image_patches = 8192
    config.train.batch_size = 1024
    config.train.micro_batches = 64
    config.train.steps = round(500e9 / (32768 * 1024))
    config.train.remat = "full"
    config.train.gradient_dtype = "bfloat16"  # float32 sums over micro-batches are 20 GB
    config.optimizer.learning_rate = 8.7e-6
    config.optimizer.schedule.warmup_steps = 0
    config.parallel.context = 4
    return config
