"""Nano in four phases: two mixtures, a decay, and rows of four times the length by YaRN, in one run.

Reproduces: the shape of Kimi K2's pretraining (section 2.5) on a laptop: a constant rate, other data, a cosine decay,
and annealing on longer rows, with the optimizer's state kept over every seam (docs/phases.md). The second source is
this repository's documentation, so start it from the repository's root.
Expected: held-out loss of both sources falls from 6.53 nats at step 20 to 5.82 at step 104, before the long rows.

    python -m k2jax.train --config=experiments/pretrain/nano_phases.py --workdir=runs/nano-phases
    python -m k2jax.data show --config=experiments/pretrain/nano_phases.py --batch=110
"""

from k2jax.config import defaults, phase, source


def get_config():
    """The experiment."""
    config = defaults("pretrain", model="nano")
    config.model.yarn.original_positions = 128
    config.data.sources.prose = source(kind="text", path="docs/*.md")
    config.data.sequence_length = 128
    config.train.batch_size = 8
    config.train.steps = 120
    config.optimizer.learning_rate = 4e-3
    config.router.bias_rate = 5e-2
    config.router.bias_rate_final = 1e-3
    config.eval.every = 20
    code, prose = ("stdlib=0.9", "prose=0.1"), ("stdlib=0.5", "prose=0.5")
    config.phases.code = phase(mixture=code, rate="constant")
    config.phases.prose = phase(begin=48, mixture=prose, rate="constant")
    config.phases.decay = phase(begin=80, mixture=prose, rate="cosine", rate_to=4e-4)
    config.phases.long = phase(
        begin=104,
        mixture=prose,
        rate="linear",
        rate_to=1.4e-4,
        overrides=("data.sequence_length=512", "train.batch_size=2", "model.yarn.factor=4"),
    )
    return config
