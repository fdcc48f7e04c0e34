"""A model small enough to train on eight emulated devices: one dense and four expert layers."""

from k2jax.config import Config, defaults, resolve

SIZES = {
    "layers": 5,
    "d_model": 32,
    "heads": 4,
    "mla": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_dim": 8, "qk_rope_dim": 4, "v_dim": 8},
    "dense_ffn": 48,
    "moe": {"expert_ffn": 16, "experts": 8, "active_experts": 2},
    "vocab": 300,
}


def config_of(overrides: dict) -> Config:
    """The config with overrides by dotted key; 14 rows, which no number of micro-batches here divides evenly."""
    config = defaults("pretrain")
    config.model.update(SIZES)
    config.data.sequence_length = 32
    config.train.batch_size = 14
    config.train.micro_batches = 4
    config.parallel.data = 1
    config.router.balance_loss = 0.01
    config.optimizer.qk_clip_tau = 0.03  # clips some heads
    config.optimizer.adam_eps = 1e-3  # Adam's first step is otherwise the sign of its gradient: no float32 equality
    config.optimizer.grad_clip = 0.0  # so that first moments are gradients
    config.optimizer.learning_rate = 1e-2
    config.optimizer.schedule.kind = "constant"
    config.optimizer.schedule.warmup_steps = 0
    config.update_from_flattened_dict({key: value for key, value in overrides.items() if "." in key})
    return resolve(config)
