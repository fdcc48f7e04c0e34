"""More experts at the same activated parameters: does loss fall with sparsity at nano size?

Reproduces: the sparsity scaling law of Kimi K2, section 2.3 (figure 5), in miniature: 8, 16, 32 and 64 experts of
which 4 are active, two token budgets, three seeds. The report fits compute-optimal models; here the active size is
fixed and the budgets are tiny, so the result may fall either way and is printed as it falls.

    python -m k2jax.reproduce sparsity --workdir=runs/sparsity
"""

from k2jax.config import defaults

EXPERTS = (8, 16, 32, 64)
STEPS = (40, 120)
SEEDS = (0, 1, 2)


def get_config():
    """A narrow nano."""
    config = defaults("pretrain", model="nano")
    config.model.d_model = 128
    config.model.layers = 3
    config.model.dense_ffn = 512
    config.model.expert_ffn = 64
    config.data.sequence_length = 256
    config.train.batch_size = 8
    config.optimizer.learning_rate = 8e-3
    config.optimizer.schedule.warmup_steps = 20
    config.router.bias_rate = 5e-3
    config.eval.every = 40
    config.eval.sample_tokens = 0
    config.eval.final_rows = 128
    config.checkpoint.every = 120
    config.log.plots_every = 10_000
    config.log.tensorboard = False
    return config


def runs():
    """Every number of experts, budget and seed; each budget is a run of its own, decayed to its own end."""
    return {
        f"experts{experts}_steps{steps}_seed{seed}": {
            "model.experts": experts,
            "train.steps": steps,
            "train.seed": seed,
        }
        for steps in STEPS
        for experts in EXPERTS
        for seed in SEEDS
    }
