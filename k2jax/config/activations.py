"""The activations of a layer that its backward pass reads, each declared once, and what each policy does with them.

From this table follow the policies of ``jax.checkpoint``, the bytes that a layer keeps, the checks of a config's names
and the table in the documentation. Source of ``selective``: Kimi K2, section 2.4.3.
"""

from __future__ import annotations

from collections.abc import Callable
import difflib
from typing import NamedTuple

from k2jax.config.schema import Config, ModelConfig, TrainConfig
from k2jax.errors import UserError

GROUPS = ("dense", "moe")
LISTS = ("keep", "recompute", "store_fp8", "offload")  # keys of TrainConfig that hold names of activations


class Activation(NamedTuple):
    """One named tensor of a layer.

    Attributes:
        name: as ``jax.ad_checkpoint.checkpoint_name`` knows it.
        meaning: for people.
        widths: numbers in a row of each of its arrays; none where the architecture does not have it.
        recomputed: why ``selective`` does not keep it; empty where it does.
        dtype: ``compute``, or one of its own.
        groups: the layers that have it.
        rows: a row per ``token``, per ``copy`` of a token that an expert computes, or ``own``: not counted by rows.
        fp8: whether it can be kept in FP8.
    """

    name: str
    meaning: str
    widths: Callable[[ModelConfig], tuple[int, ...]]
    recomputed: str = ""
    dtype: str = "compute"
    groups: tuple[str, ...] = GROUPS
    rows: str = "token"
    fp8: bool = False


def _mla(widths: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], tuple[int, ...]]:
    return lambda c: (widths(c),) if c.attention == "mla" else ()


def _gqa(widths: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], tuple[int, ...]]:
    return lambda c: (widths(c),) if c.attention == "gqa" else ()


def _latent(widths: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], tuple[int, ...]]:
    """Of queries that have a latent."""
    return lambda c: (widths(c),) if c.attention == "mla" and c.q_lora_rank else ()


def _queries(c: ModelConfig) -> int:
    return c.heads * (c.qk_nope_dim + c.qk_rope_dim)


def _direct_queries(c: ModelConfig) -> tuple[int, ...]:
    if c.attention == "gqa":
        return (c.heads * c.head_dim,)
    return () if c.q_lora_rank else (_queries(c),)


def _shared(c: ModelConfig) -> int:
    return c.shared_experts * c.expert_ffn


_NORM, _UP, _SWIGLU = "RMSNorm", "MLA up-projection", "SwiGLU"
_DENSE, _MOE = ("dense",), ("moe",)

ACTIVATIONS = (
    Activation("layer_input", "residual stream into the layer", lambda c: (c.d_model,)),
    Activation("attention_input", "its norm", lambda c: (c.d_model,), _NORM),
    Activation("q_latent", "query latent", _latent(lambda c: c.q_lora_rank)),
    Activation("q_latent_normed", "its norm", _latent(lambda c: c.q_lora_rank), _NORM),
    Activation("q_up", "queries from the latent, before rotation", _latent(_queries), _UP),
    Activation("q", "queries without a latent, before norm and rotation", _direct_queries),
    Activation("kv_latent", "key-value latent and rope key", _mla(lambda c: c.kv_lora_rank + c.qk_rope_dim)),
    Activation("kv_latent_normed", "its norm", _mla(lambda c: c.kv_lora_rank), _NORM),
    Activation("kv_up", "keys and values from the latent", _mla(lambda c: c.heads * (c.qk_nope_dim + c.v_dim)), _UP),
    Activation("k", "keys, before norm and rotation", _gqa(lambda c: c.kv_heads * c.head_dim)),
    Activation("v", "values", _gqa(lambda c: c.kv_heads * c.head_dim)),
    Activation(
        "attention_output",
        "attention of each head",
        lambda c: (c.heads * (c.v_dim if c.attention == "mla" else c.head_dim),),
    ),
    Activation("attention_lse", "log-sum-exp of each head's logits", lambda c: (c.heads,), dtype="float32"),
    Activation("layer_middle", "residual stream after attention", lambda c: (c.d_model,)),
    Activation("ffn_input", "its norm", lambda c: (c.d_model,), _NORM),
    Activation("dense_gate_up", "SwiGLU's input", lambda c: (c.dense_ffn,) * 2, groups=_DENSE, fp8=True),
    Activation("dense_activation", "SwiGLU's output", lambda c: (c.dense_ffn,), _SWIGLU, groups=_DENSE),
    Activation("router_scores", "sigmoid scores", lambda c: (c.experts,), dtype="float32", groups=_MOE),
    Activation("expert_ids", "chosen experts", lambda c: (c.active_experts,), dtype="int32", groups=_MOE),
    Activation("expert_input", "tokens that the experts here compute", lambda c: (c.d_model,), groups=_MOE, fp8=True),
    Activation("expert_plan", "where copies of tokens lie", lambda c: (1,), dtype="int32", groups=_MOE, rows="own"),
    Activation("expert_gate_up", "SwiGLU's input", lambda c: (c.expert_ffn,) * 2, groups=_MOE, rows="copy", fp8=True),
    Activation(
        "shared_gate_up",
        "SwiGLU's input in the shared experts",
        lambda c: (_shared(c),) * 2 if c.shared_experts else (),
        groups=_MOE,
        fp8=True,
    ),
    Activation(
        "shared_activation",
        "SwiGLU's output in the shared experts",
        lambda c: (_shared(c),) if c.shared_experts else (),
        _SWIGLU,
        groups=_MOE,
    ),
)
"""In the order in which the forward pass makes them. Routed experts never keep SwiGLU's output nor the rows of their
down projection, whatever the policy: their own backward pass needs neither."""

BY_NAME = {activation.name: activation for activation in ACTIVATIONS}

POLICIES: dict[str, frozenset[str] | None] = {
    "none": None,
    "selective": frozenset(a.name for a in ACTIVATIONS if not a.recomputed),
    "full": frozenset({"layer_input"}),
}
"""The names that each policy keeps; None is everything that JAX's differentiation keeps, named or not."""


def present(model: ModelConfig, group: str) -> tuple[Activation, ...]:
    """The activations of a layer of ``group`` in this architecture."""
    return tuple(a for a in ACTIVATIONS if group in a.groups and a.widths(model))


def kept_names(train: TrainConfig) -> frozenset[str] | None:
    """What a layer keeps under a config, of the names that it has; None where its policy is ``none``."""
    names = POLICIES[train.remat]
    if names is None:
        return None
    return (names - set(train.recompute)) | {*train.keep, *train.store_fp8, *train.offload}


def check_activations(config: Config) -> None:
    """Refuses names that would have no effect.

    Raises:
        UserError: a name that there is not, in the table or in this architecture, that FP8 does not hold, or that is
            both kept and recomputed; any name where the policy is ``none``.
    """
    train, model = config.train, config.model
    groups = ("dense",) * (model.dense_layers > 0) + ("moe",) * (model.dense_layers < model.layers)
    here = [a.name for a in ACTIVATIONS if any(a in present(model, group) for group in groups)]
    for key in LISTS:
        for name in getattr(train, key):
            if train.remat == "none":
                raise UserError(f"config.train.{key} has an effect with config.train.remat selective or full, not none")
            if name not in here:
                close = difflib.get_close_matches(name, here, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(here)}"
                raise UserError(f"config.train.{key}: layers of this model have no activation {name!r}; {hint}")
            if key == "store_fp8" and not BY_NAME[name].fp8:
                takes = ", ".join(n for n in here if BY_NAME[n].fp8)
                raise UserError(f"config.train.store_fp8 cannot hold {name!r}; it takes {takes}")
    clash = sorted(set(train.recompute) & {*train.keep, *train.store_fp8, *train.offload})
    if clash or "layer_input" in train.recompute:
        name = clash[0] if clash else "layer_input"
        reason = "keep, store_fp8 or offload keeps it" if clash else "a layer is recomputed from it"
        raise UserError(f"config.train.recompute cannot name {name!r}: {reason}")
