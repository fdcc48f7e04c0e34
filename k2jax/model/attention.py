"""The kinds of attention, each one record: everything that the rest of the codebase asks about ``model.attention``.

Widths and checks that need no weights stand with the configuration: ``ModelConfig.attention_widths`` and
``config.checks``.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

from jax import Array

from k2jax.config.schema import AttentionKind, ModelConfig
from k2jax.model.cached_attention import gqa_cached, mla_cached
from k2jax.model.gqa import gqa, gqa_specs
from k2jax.model.layer_specs import LayerSpecs
from k2jax.model.mla import mla, mla_specs
from k2jax.model.rope import rotary_table
from k2jax.params import Specs

Attend = Callable[[dict, Array, Array], tuple[Array, Array]]
"""``(attention weights, normalised [B, S, D], layer number []) -> (output [B, S, D], side output)``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention:
    """One kind of attention.

    Attributes:
        specs: ``(config, layers) -> specs`` of a run of layers' ``attention`` weights.
        apply: ``(params, x [B, S, D], rotary, exit, config) -> (output [B, S, D], maximum logit [H])``, see ``mla``.
        apply_cached: ``(params, x [N, T, D], rotary, visible, config) -> (output [N, T, D], new vectors [N, T, W])``,
            see ``cached_attention.mla_cached``.
        cache_width: numbers that a cache keeps per token and layer, W.
        key_heads: heads of keys and values.
        decode_kernel: whether ``apply_cached`` runs the Pallas kernel ``mla_decode``, which wants W in whole lanes.
        splits_by_stage: whether pipeline stages can share the heads of leading dense layers.
    """

    specs: Callable[[ModelConfig, LayerSpecs], Specs]
    apply: Callable[..., tuple[Array, Array]]
    apply_cached: Callable[..., tuple[Array, Array]]
    cache_width: Callable[[ModelConfig], int]
    key_heads: Callable[[ModelConfig], int]
    decode_kernel: bool
    splits_by_stage: bool


ATTENTION: dict[AttentionKind, Attention] = {
    "mla": Attention(
        specs=mla_specs,
        apply=mla,
        apply_cached=mla_cached,
        cache_width=lambda config: config.mla.kv_lora_rank + config.mla.qk_rope_dim,
        key_heads=lambda config: config.heads,
        decode_kernel=True,
        splits_by_stage=True,
    ),
    "gqa": Attention(
        specs=gqa_specs,
        apply=gqa,
        apply_cached=gqa_cached,
        cache_width=lambda config: 2 * config.gqa.kv_heads * config.gqa.head_dim,
        key_heads=lambda config: config.gqa.kv_heads,
        decode_kernel=False,
        splits_by_stage=False,
    ),
}


def attention_of(config: ModelConfig) -> Attention:
    """The model's kind of attention."""
    return ATTENTION[config.attention]


def make_attend(config: ModelConfig, positions: Array, exit: Array | None) -> Attend:
    """Attention among the tokens of each row, as ``run_layers`` calls it; its side output is the maximum logit ``[H]``.

    Args:
        config: the architecture.
        positions: ``[B, S]`` int32.
        exit: ``[B, S]`` int32 mask vector of PackedBatch; None is causal without padding.
    """
    apply, rotary = attention_of(config).apply, rotary_table(positions, config)
    return lambda params, x, layer: apply(params, x, rotary, exit, config)
