"""Grouped-query attention in float64 NumPy, head by head, written from the papers and not from the code."""

import numpy as np


def _norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _rotated(x, theta):
    """Channel i of ``x [S, E]`` is turned with channel i + E/2, as a complex number, by position * theta^(-2i/E)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-2 * np.arange(half) / x.shape[-1])
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def gqa_layer(attention, x, config):
    """Output ``[B, S, D]`` of one layer on ``x [B, S, D]``, and the largest visible logit per head ``[H]``."""
    weights = {name: np.asarray(w, np.float64) for name, w in attention.items()}
    x = np.asarray(x, np.float64)
    batch, length, _ = x.shape
    out, top = np.zeros_like(x), np.full(config.heads, -np.inf)
    causal = np.tril(np.ones((length, length), bool))

    def project(name, row, head):
        y = row @ weights[name][:, head]
        if f"{name}_bias" in weights:
            y = y + weights[f"{name}_bias"][head]
        return _norm(y, weights[f"{name}_norm"], config.norm_eps) if f"{name}_norm" in weights else y

    for b in range(batch):
        for head in range(config.heads):
            shared = head // (config.heads // config.gqa.kv_heads)
            q = _rotated(project("q", x[b], head), config.rope_theta)
            k = _rotated(project("k", x[b], shared), config.rope_theta)
            logits = np.where(causal, q @ k.T / np.sqrt(config.gqa.head_dim), -np.inf)
            top[head] = max(top[head], logits.max())
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            out[b] += probs / probs.sum(-1, keepdims=True) @ project("v", x[b], shared) @ weights["o"][head]
    return out, top
