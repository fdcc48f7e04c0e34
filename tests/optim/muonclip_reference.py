"""A small model's specs, and float64 NumPy references, written from the report's formulas and not from the code."""

import numpy as np

from k2jax import model
from k2jax.config.schema import MLAConfig, ModelConfig, MoEConfig
from k2jax.params import map_specs

D, HEADS, NOPE, ROPE, V, Q_LORA, KV_LORA, FFN, EXPERTS, VOCAB = 12, 2, 4, 2, 4, 6, 5, 10, 3, 20


def model_specs(dense=1, moe=2, q_lora=True):
    """The tree of a tiny Kimi K2: every role, every kind of stack."""
    mla = MLAConfig(q_lora_rank=Q_LORA * q_lora, kv_lora_rank=KV_LORA, qk_nope_dim=NOPE, qk_rope_dim=ROPE, v_dim=V)
    experts = MoEConfig(expert_ffn=FFN, experts=EXPERTS, active_experts=1)
    layers = {"layers": dense + moe, "dense_layers": dense, "mla": mla, "moe": experts}
    return model.model_specs(ModelConfig(d_model=D, heads=HEADS, dense_ffn=FFN, vocab=VOCAB, **layers))


def random_like(specs, seed, scale=1.0):
    """Tree of normal float32 leaves."""
    rng = np.random.default_rng(seed)
    return map_specs(lambda spec: np.float32(scale) * rng.standard_normal(spec.shape).astype(np.float32), specs)


def newton_schulz(matrix, steps=5):
    """Newton-Schulz with the quintic on a float64 matrix."""
    x = np.asarray(matrix, np.float64)
    x = x / (np.sqrt((x * x).sum()) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


class Muon:
    """One matrix, float64: momentum, Newton-Schulz, 0.2 sqrt(max(n, m)), decoupled decay."""

    def __init__(self, weight, rate, decay=0.1, momentum=0.95):
        self.weight = np.asarray(weight, np.float64)
        self.moment = np.zeros_like(self.weight)
        self.rate, self.decay, self.momentum = rate, decay, momentum

    def step(self, gradient):
        gradient = np.asarray(gradient, np.float64)
        self.moment = self.momentum * self.moment + gradient
        update = newton_schulz(self.moment) * 0.2 * np.sqrt(max(self.weight.shape))
        self.weight = self.weight - self.rate * (update + self.decay * self.weight)


def qk_clip(attention, max_logit_LH, tau, alpha=0.5):
    """Scales copies of one group's q and kv_b weights head by head, in float64."""
    attention = {name: np.array(w, np.float64) for name, w in attention.items()}
    q = attention["q_b"] if "q_b" in attention else attention["q"]
    kv = attention["kv_b"]
    for layer, row in enumerate(max_logit_LH):
        for head, s in enumerate(row):
            if s > tau:
                gamma = tau / s
                q[layer, :, head, :NOPE] *= gamma**alpha
                q[layer, :, head, NOPE:] *= gamma
                kv[layer, :, head, :NOPE] *= gamma ** (1 - alpha)
    return attention


def qk_clip_gqa(attention, max_logit_LH, tau):
    """Scales copies of the queries of a grouped-query group head by head, their biases too, in float64."""
    attention = {name: np.array(w, np.float64) for name, w in attention.items()}
    for layer, row in enumerate(max_logit_LH):
        for head, s in enumerate(row):
            if s > tau:
                attention["q"][layer, :, head] *= tau / s
                if "q_bias" in attention:
                    attention["q_bias"][layer, head] *= tau / s
    return attention
