"""The activations that a layer's backward pass reads, each declared once, and the policies that keep or recompute them.

The policies of ``jax.checkpoint``, the bytes that a layer keeps, the checks of a config's names and the table in the
documentation are derived from this table. Source of ``selective``: Kimi K2, section 2.4.3.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import difflib

from k2jax.config.schema import AttentionKind, Config, ModelConfig, RematPolicy, TrainConfig
from k2jax.errors import UserError

GROUPS = ("dense", "moe")
LISTS = ("keep", "recompute", "store_fp8", "offload")  # keys of TrainConfig that hold names of activations
PIPELINE_LIST = "keep_across"  # one more, which layers of a pipeline alone take


@dataclasses.dataclass(frozen=True)
class Activation:
    """One named tensor of a layer.

    Attributes:
        name: its name in ``jax.ad_checkpoint.checkpoint_name``.
        meaning: a description for the documentation.
        widths: elements in a row of each of its arrays; empty in an architecture without this activation.
        recomputed: the cheap operation from which ``selective`` recomputes it; empty if ``selective`` keeps it.
        dtype: ``compute`` for the compute dtype, or the name of a dtype.
        groups: the groups of layers that have it.
        attention: the kind of attention that has it; None for both kinds.
        rows: ``token`` for one row per token, ``copy`` for one row per copy of a token that an expert computes, or
            ``own`` if it is not counted by rows.
        fp8: whether it can be kept in FP8.
    """

    name: str
    meaning: str
    widths: Callable[[ModelConfig], tuple[int, ...]]
    recomputed: str = ""
    _: dataclasses.KW_ONLY
    dtype: str = "compute"
    groups: tuple[str, ...] = GROUPS
    attention: AttentionKind | None = None
    rows: str = "token"
    fp8: bool = False


def _latent(c: ModelConfig) -> int:
    return c.attention_widths.query_latent_dim


def _queries(c: ModelConfig) -> int:
    return c.heads * c.attention_widths.key_dim


def _shared(c: ModelConfig) -> int:
    return c.moe.shared_experts * c.moe.expert_ffn


def _if(present: int | bool, *widths: int) -> tuple[int, ...]:
    """``widths`` where the part of the layer that makes them is present."""
    return widths if present else ()


_NORM, _UP, _SWIGLU = "RMSNorm", "MLA up-projection", "SwiGLU"
_DENSE, _MOE = ("dense",), ("moe",)

ACTIVATIONS = (
    Activation("layer_input", "residual stream into the layer", lambda c: (c.d_model,)),
    Activation("attention_input", "its norm", lambda c: (c.d_model,), _NORM),
    Activation("q_latent", "query latent", lambda c: _if(_latent(c), _latent(c))),
    Activation("q_latent_normed", "its norm", lambda c: _if(_latent(c), _latent(c)), _NORM),
    Activation("q_up", "queries from the latent, before rotation", lambda c: _if(_latent(c), _queries(c)), _UP),
    Activation("q", "queries without a latent, before norm and rotation", lambda c: _if(not _latent(c), _queries(c))),
    Activation(
        "kv_latent",
        "key-value latent and rope key",
        lambda c: (c.mla.kv_lora_rank + c.mla.qk_rope_dim,),
        attention="mla",
    ),
    Activation("kv_latent_normed", "its norm", lambda c: (c.mla.kv_lora_rank,), _NORM, attention="mla"),
    Activation(
        "kv_up",
        "keys and values from the latent",
        lambda c: (c.heads * (c.mla.qk_nope_dim + c.mla.v_dim),),
        _UP,
        attention="mla",
    ),
    Activation("k", "keys, before norm and rotation", lambda c: (c.gqa.kv_heads * c.gqa.head_dim,), attention="gqa"),
    Activation("v", "values", lambda c: (c.gqa.kv_heads * c.gqa.head_dim,), attention="gqa"),
    Activation("attention_output", "attention of each head", lambda c: (c.heads * c.attention_widths.value_dim,)),
    Activation("attention_lse", "log-sum-exp of each head's logits", lambda c: (c.heads,), dtype="float32"),
    Activation("layer_middle", "residual stream after attention", lambda c: (c.d_model,)),
    Activation("ffn_input", "its norm", lambda c: (c.d_model,), _NORM),
    Activation("dense_gate_up", "SwiGLU's input", lambda c: (c.dense_ffn,) * 2, groups=_DENSE, fp8=True),
    Activation("dense_activation", "SwiGLU's output", lambda c: (c.dense_ffn,), _SWIGLU, groups=_DENSE),
    Activation("router_scores", "sigmoid scores", lambda c: (c.moe.experts,), dtype="float32", groups=_MOE),
    Activation("expert_ids", "chosen experts", lambda c: (c.moe.active_experts,), dtype="int32", groups=_MOE),
    Activation("expert_input", "tokens that local experts compute", lambda c: (c.d_model,), groups=_MOE, fp8=True),
    Activation("expert_plan", "where copies of tokens lie", lambda c: (1,), dtype="int32", groups=_MOE, rows="own"),
    Activation(
        "expert_gate_up", "SwiGLU's input", lambda c: (c.moe.expert_ffn,) * 2, groups=_MOE, rows="copy", fp8=True
    ),
    Activation(
        "shared_gate_up",
        "SwiGLU's input in the shared experts",
        lambda c: _if(_shared(c), _shared(c), _shared(c)),
        groups=_MOE,
        fp8=True,
    ),
    Activation(
        "shared_activation",
        "SwiGLU's output in the shared experts",
        lambda c: _if(_shared(c), _shared(c)),
        _SWIGLU,
        groups=_MOE,
    ),
)
"""In the order of the forward pass. No policy makes routed experts keep SwiGLU's output or the rows of their down
projection: their own backward pass needs neither."""

BY_NAME = {activation.name: activation for activation in ACTIVATIONS}

POLICIES: dict[RematPolicy, frozenset[str] | None] = {
    "none": None,
    "selective": frozenset(a.name for a in ACTIVATIONS if not a.recomputed),
    "full": frozenset({"layer_input"}),
}
"""The names that each policy keeps; None keeps everything that JAX's differentiation keeps, named or not."""


def present(model: ModelConfig, group: str) -> tuple[Activation, ...]:
    """Lists the activations of a layer of ``group`` in this architecture."""
    return tuple(
        a for a in ACTIVATIONS if group in a.groups and a.attention in (None, model.attention) and a.widths(model)
    )


def kept_names(train: TrainConfig) -> frozenset[str] | None:
    """Returns the names that a layer keeps under a config; None where its policy is ``none``."""
    names = POLICIES[train.remat]
    if names is None:
        return None
    return (names - set(train.recompute)) | {*train.keep, *train.store_fp8, *train.offload}


def check_activations(config: Config) -> None:
    """Rejects names of activations that would have no effect.

    Raises:
        UserError: a name that this architecture does not have, that FP8 does not support, or that is both kept and
            recomputed; any name with policy ``none``, unless a pipeline keeps it; names to keep across ticks without
            such a pipeline.
    """
    train, model = config.train, config.model
    groups = ("dense",) * (model.dense_layers > 0) + ("moe",) * (model.dense_layers < model.layers)
    names = [a.name for a in ACTIVATIONS if any(a in present(model, group) for group in groups)]
    _check_across(config, groups[-1])
    for key in LISTS:
        for name in getattr(train, key):
            if train.remat == "none" and not (key == "store_fp8" and name in train.keep_across):
                raise UserError(f"config.train.{key} has an effect with config.train.remat selective or full, not none")
            _check_name(key, name, names)
            if key == "store_fp8" and not BY_NAME[name].fp8:
                takes = ", ".join(n for n in names if BY_NAME[n].fp8)
                raise UserError(f"config.train.store_fp8 cannot hold {name!r}; it takes {takes}")
    clash = sorted(set(train.recompute) & {*train.keep, *train.store_fp8, *train.offload})
    if clash or "layer_input" in train.recompute:
        name = clash[0] if clash else "layer_input"
        reason = "keep, store_fp8 or offload keeps it" if clash else "a layer is recomputed from it"
        raise UserError(f"config.train.recompute cannot name {name!r}: {reason}")


def _check_across(config: Config, group: str) -> None:
    train, parallel = config.train, config.parallel
    if train.keep_across and (parallel.stage == 1 or parallel.executor != "1f1b"):
        raise UserError(
            "config.train.keep_across is of a pipeline: set config.parallel.stage and parallel.executor=1f1b, or use "
            "config.train.keep"
        )
    names = [a.name for a in present(config.model, group) if a.name != "layer_input"]
    for name in train.keep_across:
        if name == "layer_input":
            raise UserError("config.train.keep_across: a pipeline keeps 'layer_input' anyway; leave it out")
        _check_name("keep_across", name, names)
        for key in ("recompute", "offload"):
            if name in getattr(train, key):
                raise UserError(f"config.train.{key} cannot name {name!r}: keep_across keeps it on the device")


def _check_name(key: str, name: str, names: list[str]) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise UserError(f"config.train.{key}: layers of this model have no activation {name!r}; {hint}")
