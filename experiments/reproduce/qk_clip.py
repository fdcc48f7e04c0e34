"""QK-Clip keeps attention logits at its threshold: the same seed and rate with and without it.

Reproduces: Kimi K2, section 2.1, figure 2 (maximum logits with vanilla Muon and with MuonClip). At nano's own rate its
logits stay below the report's threshold of 100; so the learning rate is raised tenfold and the threshold lowered to
TAU: stated here and in the table.
Expected: without the clip S grows to hundreds; with it S stays near TAU from the step after it is first passed, at no
cost in loss.

    python -m k2jax.reproduce qk_clip --workdir=runs/qk_clip
"""

from k2jax.config import defaults

TAU = 12.0


def get_config():
    """Nano, hotter."""
    config = defaults("pretrain", model="nano")
    config.data.sequence_length = 256
    config.train.steps = 200
    config.train.batch_size = 8
    config.optimizer.learning_rate = 2e-2
    config.optimizer.schedule.kind = "constant"
    config.optimizer.schedule.warmup_steps = 20
    config.optimizer.qk_clip_tau = TAU
    config.router.bias_rate = 5e-3
    config.eval.every = 50
    config.eval.sample_tokens = 0
    config.checkpoint.every = 100
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """With and without."""
    return {name: {"optimizer.name": name} for name in ("muon", "muonclip")}
