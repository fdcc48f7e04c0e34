r"""Kimi K2.5: joint pretraining on text and images, and joint mid-training on rows of 32k and of 262,144 tokens.

Reproduces: the last two stages of Kimi K2.5's pretraining (section 4.3, table 3) as one run, in which the optimizer's
state carries over: 15T tokens at 4,096 as in k2_5_joint.py, 500B at 32,768 and 200B at 262,144, extended by YaRN with
the published factor of 64. Mesh, rates and batches are choices of this file, not the report's.
Expected: not run, nothing was trained with it. The first phase is the step of k2_5_joint.py (docs/aot.md). The phase of
32,768 tokens was traced with its two rows of the tower for each row of tokens, and not compiled. Of the last one the
attention kernels compile (docs/kernels.md), the whole step does not (docs/limits.md).

    python -m k2jax.aot --config=experiments/pretrain/k2_5.py --topology=v5p:8x8x16
    python -m k2jax.aot --config=experiments/pretrain/k2_5.py --topology=v5p:8x8x16 --phase=long
    python -m k2jax.aot --config=experiments/pretrain/k2_5.py --topology=v5p:16x16x16 --phase=longest
    python -m k2jax.launch --config=experiments/pretrain/k2_5.py --workdir=gs://my-bucket/k2.5 \
        --tpu=v5p:8x8x16 --project=my-project --zone=us-east5-a \
        --image=us-docker.pkg.dev/my-project/k2jax/train:1 --dry_run

The last phase has 16 devices to a row and with that 4,096 chips. On fewer the run says so at its start and stops before
that phase, to be continued on more. Set config.init_from to the workdir of the projector's stage (docs/vision.md).
"""

from itertools import accumulate

from k2jax.config import model_preset, phase
from k2jax.config.experiments import config_beside

FACTOR = f"model.yarn.factor={model_preset('k2.5').yarn.factor:g}"
ROWS = {4096: 4096, 32768: 1024, 262144: 256}
"""Rows of a step by their length [tokens]."""
TOKENS = (9e12, 4096), (6e12, 4096), (500e9, 32768), (200e9, 262144)
"""Tokens of every phase, and the length of its rows."""


def get_config():
    """The experiment."""
    config = config_beside(__file__, "k2_5_joint.py")
    decay, long, longest, end = accumulate(round(tokens / (length * ROWS[length])) for tokens, length in TOKENS)
    config.train.steps = end
    config.phases.joint = phase(rate="constant")
    config.phases.decay = phase(begin=decay, rate="linear", rate_to=2e-5)
    images = ("data.images.patches=8192", "data.images.image_patches=8192")
    memory = ("train.remat=full", "train.gradient_dtype=bfloat16")  # float32 sums over micro-batches are 20 GB
    config.phases.long = phase(
        begin=long,
        rate="linear",
        rate_to=8.7e-6,
        overrides=(
            "data.sequence_length=32768",
            "data.images.rows=2",  # of rows of tokens 40 % have images, each up to 8,192 features as clips have
            "data.images.rows_each=4",
            f"train.batch_size={ROWS[32768]}",
            "train.micro_batches=64",
            "parallel.context=4",
            FACTOR,
            *images,
            *memory,
        ),
    )
    config.phases.longest = phase(
        begin=longest,
        rate="linear",
        rate_to=7e-6,
        overrides=(
            "data.sequence_length=262144",
            "data.images.rows=16",  # one for each device
            "data.images.rows_each=32",  # 65,536 features: a quarter of the row, as before
            f"train.batch_size={ROWS[262144]}",
            "train.micro_batches=4",
            "parallel.stage=4",  # the devices of a row share the heads of a stage's part of the dense layers
            "parallel.expert=64",
            "parallel.context=16",
            FACTOR,
            *images,
            *memory,
        ),
    )
    return config
