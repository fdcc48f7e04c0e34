"""Architectures and methods of reinforcement learning by name.

Architectures are only defaults: an import reads every value from the checkpoint's own config.
"""

from __future__ import annotations

from typing import Any

from k2jax.config.replace import replace_keys
from k2jax.config.schema import GQAConfig, Llama3RopeConfig, MLAConfig, ModelConfig, MoEConfig, VisionConfig, YarnConfig
from k2jax.errors import UserError

_DEEPSEEK_V3 = ModelConfig(
    layers=61,
    dense_layers=3,
    d_model=7168,
    heads=128,
    mla=MLAConfig(q_lora_rank=1536, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128),
    dense_ffn=18432,
    moe=MoEConfig(
        expert_ffn=2048,
        experts=256,
        active_experts=8,
        shared_experts=1,
        expert_groups=8,
        active_groups=4,
        routed_scaling=2.5,
    ),
    rope_theta=10000.0,
    yarn=YarnConfig(factor=40.0, beta_fast=32.0, beta_slow=1.0),
    norm_eps=1e-6,
    vocab=129280,
    init_std=0.006,
)

_K2 = replace_keys(
    _DEEPSEEK_V3,
    {
        "dense_layers": 1,
        "heads": 64,
        "moe.experts": 384,
        "moe.expert_groups": 1,
        "moe.active_groups": 1,
        "moe.routed_scaling": 2.827,
        "rope_theta": 50000.0,
        "yarn": YarnConfig(factor=32.0, beta_fast=1.0, beta_slow=1.0),
        "vocab": 163840,
    },
)

PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(),
    "micro": ModelConfig(
        layers=3,
        dense_layers=1,
        d_model=128,
        heads=4,
        mla=MLAConfig(q_lora_rank=48, kv_lora_rank=32, qk_nope_dim=32, qk_rope_dim=16, v_dim=32),
        dense_ffn=384,
        moe=MoEConfig(expert_ffn=64, experts=16, active_experts=4, shared_experts=1),
        vocab=258,
    ),
    "moonlight": ModelConfig(
        layers=27,
        dense_layers=1,
        d_model=2048,
        heads=16,
        mla=MLAConfig(q_lora_rank=None, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128),
        dense_ffn=11264,
        moe=MoEConfig(expert_ffn=1408, experts=64, active_experts=6, shared_experts=2, routed_scaling=2.446),
        rope_theta=50000.0,
        norm_eps=1e-5,
        vocab=163840,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "k2": _K2,
    "k2.5": replace_keys(_K2, {"yarn": YarnConfig(factor=64.0), "norm_eps": 1e-5}),  # 262,144 positions
    "smollm2_135m": ModelConfig(
        layers=30,
        dense_layers=30,
        d_model=576,
        heads=9,
        attention="gqa",
        gqa=GQAConfig(kv_heads=3, head_dim=64),
        dense_ffn=1536,
        rope_theta=100000.0,
        norm_eps=1e-5,
        vocab=49152,
        tied_head=True,
        init_std=1 / 24,
    ),
    "qwen2.5_0.5b": ModelConfig(
        layers=24,
        dense_layers=24,
        d_model=896,
        heads=14,
        attention="gqa",
        gqa=GQAConfig(kv_heads=2, head_dim=64, qkv_bias=True),
        dense_ffn=4864,
        rope_theta=1e6,
        norm_eps=1e-6,
        vocab=151936,
        tied_head=True,
    ),
    "qwen3_0.6b": ModelConfig(
        layers=28,
        dense_layers=28,
        d_model=1024,
        heads=16,
        attention="gqa",
        gqa=GQAConfig(kv_heads=8, head_dim=128, qk_norm=True),
        dense_ffn=3072,
        rope_theta=1e6,
        norm_eps=1e-6,
        vocab=151936,
        tied_head=True,
    ),
    "llama3.2_1b": ModelConfig(
        layers=16,
        dense_layers=16,
        d_model=2048,
        heads=32,
        attention="gqa",
        gqa=GQAConfig(kv_heads=8, head_dim=64),
        dense_ffn=8192,
        rope_theta=500000.0,
        llama3_rope=Llama3RopeConfig(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192),
        norm_eps=1e-5,
        vocab=128256,
        tied_head=True,
    ),
}


VISION_PRESETS: dict[str, VisionConfig] = {
    "moonvit": VisionConfig(layers=27),
    "nano_vision": VisionConfig(layers=4, width=128, heads=4, ffn=512, grid=16),
}
"""Towers by name, for ``model.vision``."""


def vision_preset(name: str) -> VisionConfig:
    """Returns the tower called ``name``.

    Raises:
        UserError: for an unknown name.
    """
    if name not in VISION_PRESETS:
        raise UserError(f"unknown vision preset {name!r}; there are {', '.join(VISION_PRESETS)}")
    return VISION_PRESETS[name]


def model_preset(name: str) -> ModelConfig:
    """Returns the architecture called ``name``.

    Raises:
        UserError: for an unknown name.
    """
    if name not in PRESETS:
        raise UserError(f"unknown model preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


METHODS: dict[str, dict[str, Any]] = {
    "k2": {"loss.name": "k2"},  # arXiv:2507.20534, section 3.2.3: rewards less the mean of their group
    "k2.5": {"loss.name": "k2.5"},  # arXiv:2602.02276, equation 1
    "kat": {  # section 3.3: turn-level GSPO, IcePop, MCLA, Tree Training as on every path by itself
        "loss.name": "kat",
        "loss.old": "recompute",
        "loss.icepop.on": True,
        "loss.mcla.passes": 4,  # the report does not say how many
        "advantage.scale": "std",
        "packing.layout": "tree",
        "packing.shared_tokens": "paths",
    },
    "gspo": {"loss.name": "gspo", "advantage.scale": "std"},  # arXiv:2507.18071, equations 5 to 7
}
"""What a report's method sets below ``config.rl``; a loss's band and aggregation follow from its name."""


def method_preset(name: str) -> dict[str, Any]:
    """Returns the values of the method called ``name``, by dotted key below ``config.rl``.

    Raises:
        UserError: for an unknown name.
    """
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
