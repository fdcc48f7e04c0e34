"""Muon against AdamW at equal data: how many tokens and seconds Muon needs for AdamW's final validation loss.

Reproduces: the token-efficiency claim behind Kimi K2's choice of optimizer (Kimi K2, section 2.1; Moonlight reports
about half the training FLOPs at scale), on a small K2 architecture. Both optimizers see the same batches at the same
seed, with a constant rate after the warm-up; each takes its best rate, which must lie inside its grid (found with the
first seed); three seeds.
Expected: Muon needs clearly fewer tokens; in seconds less clearly, for Newton-Schulz is a large share at so small a
batch.

    python -m k2jax.reproduce muon_vs_adamw --workdir=runs/muon_vs_adamw
"""

from k2jax.config import defaults

RATES = {"muonclip": (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2), "adamw": (1e-3, 2e-3, 4e-3)}
SEEDS = (0, 1, 2)
BEST = {"muonclip": 4e-3, "adamw": 2e-3}
"""The best rates of seed 0's grid, which the other seeds run alone. Another winner would show in the table."""


def get_config():
    """A narrow nano: half the width and the experts, so that 12 runs fit 20 minutes of two cores."""
    config = defaults("pretrain", model="nano")
    config.model.d_model = 128
    config.model.layers = 3
    config.model.dense_ffn = 512
    config.model.expert_ffn = 64
    config.model.experts = 16
    config.data.sequence_length = 256
    config.train.steps = 160
    config.train.batch_size = 8
    config.optimizer.schedule.kind = "constant"
    config.optimizer.schedule.warmup_steps = 20
    config.router.bias_rate = 5e-3
    config.eval.every = 10
    config.eval.rows = 32
    config.eval.final_rows = 64
    config.eval.sample_tokens = 0
    config.checkpoint.every = 160
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """Both grids with the first seed, the best rates with all."""
    return {
        f"{name}_{rate:g}_seed{seed}": {
            "optimizer.name": name,
            "optimizer.learning_rate": rate,
            "train.seed": seed,
        }
        for seed in SEEDS
        for name, rates in RATES.items()
        for rate in (rates if seed == SEEDS[0] else (BEST[name],))
    }
