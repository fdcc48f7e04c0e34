"""What a layer keeps until its backward pass, and what that recomputes: from the declared table of activations.

``k2jax.config.activations`` names every activation of a layer; a config says which of them are kept, in FP8 or in the
host's memory. What is not kept is recomputed by the product of a matrix that ``PRODUCERS`` names, by the attention
kernel, by exchanging tokens once more, or by elementwise work, which the estimates leave out. Products whose results no
backward pass reads, the down projections, are never repeated.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from k2jax.aot.cost.expert_rows import expert_buffers
from k2jax.config.activations import LISTS, PIPELINE_LIST, kept_names, present
from k2jax.config.schema import Config, ModelConfig
from k2jax.model.remat import activation_bytes

PRODUCERS = {
    "q_latent": "attention/q_a",
    "q_up": "attention/q_b",
    "q": "attention/q",
    "kv_latent": "attention/kv_a",
    "kv_up": "attention/kv_b",
    "k": "attention/k",
    "v": "attention/v",
    "layer_middle": "attention/o",
    "dense_gate_up": "ffn/w13",
    "router_scores": "router",
    "expert_gate_up": "experts/w13",
    "shared_gate_up": "shared/w13",
}
"""The matrix, within a layer, whose product is an activation.

Other activations come from norms, SwiGLU, attention or the exchange."""

ATTENTION = ("attention_output", "attention_lse")  # results of the attention kernel


class KeptActivations(NamedTuple):
    """Bytes of one layer and micro-batch on one device.

    Attributes:
        device: kept in HBM until the backward pass.
        host: kept in the host's memory.
        all: of everything that the backward pass reads, in HBM while it runs.
    """

    device: float
    host: float
    all: float


def kept_activations(config: Config, group: str, tokens: int, ranks: int) -> KeptActivations:
    """Bytes of a layer of ``group`` (``dense`` or ``moe``) under the config's policy, in bfloat16.

    Args:
        config: the experiment.
        group: kind of layer.
        tokens: of a micro-batch on one device.
        ranks: devices that share the experts.
    """
    sizes, train = activation_sizes(config, group, tokens, ranks), config.train
    names, every = kept_names(train), sum(sizes.values())
    if names is None:
        every += tokens * _unnamed_bytes(config.model, group)
        return KeptActivations(every, 0.0, every)
    kept = set(sizes) & names
    host = sum(sizes[name] for name in kept if name in train.offload)
    return KeptActivations(sum(sizes[name] for name in kept) - host, host, every)


def keeping(config: Config, names: tuple[str, ...], stored: tuple[str, ...] = ()) -> Config:
    """The config whose layers keep their input and these names alone."""
    lists = {**dict.fromkeys((*LISTS, PIPELINE_LIST), ()), "keep": names, "store_fp8": stored}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, remat="full", **lists))


def kept_across(config: Config, group: str, tokens: int, ranks: int, layers: int) -> float:
    """Bytes of a pipeline's chunk of ``layers`` that it keeps until its backward tick beside its input, in bfloat16."""
    if not config.train.keep_across:
        return 0.0
    sizes = activation_sizes(config, group, tokens, ranks)
    inputs = sizes["layer_input"] if layers > 1 else 0  # of one layer it is the chunk's
    return layers * (sum(sizes[name] for name in config.train.keep_across) + inputs)


def activation_sizes(config: Config, group: str, tokens: int, ranks: int) -> dict[str, int]:
    """Bytes of every activation of a layer on one device, by name; of those in ``store_fp8`` in FP8."""
    names = frozenset(activation.name for activation in present(config.model, group))
    experts = expert_buffers(config, tokens, ranks).rows if group == "moe" else None
    return activation_bytes(config, tokens, group, experts=experts, names=names)


def _unnamed_bytes(model: ModelConfig, group: str) -> int:
    """Bytes a token that differentiation keeps without a policy beside what has a name, as counted in traced steps.

    In float32 the inputs of norms; in bfloat16 normalised values, the attention's output in another layout, and
    intermediate values of SwiGLU, in the dense feed-forward or in the shared experts.
    """
    attention = model.attention_widths
    hidden = model.dense_ffn if group == "dense" else model.moe.shared_experts * model.moe.expert_ffn
    heads = model.heads * attention.value_dim
    return 4 * (3 * model.d_model + attention.latent_dim) + 2 * (3 * model.d_model + heads + 3 * hidden)


def recomputed_matrices(config: Config, group: str) -> frozenset[str]:
    """Names, within a layer, of the matrices that the backward pass multiplies by once more."""
    return frozenset(PRODUCERS[name] for name in _recomputed(config, group) if name in PRODUCERS)


def recomputes_attention(config: Config, group: str) -> bool:
    """Whether the backward pass runs the attention kernel's forward pass once more."""
    return not _recomputed(config, group).isdisjoint(ATTENTION)


def recomputes_exchange(config: Config, group: str) -> bool:
    """Whether the backward pass sends tokens to their experts once more."""
    return "expert_input" in _recomputed(config, group)


def _recomputed(config: Config, group: str) -> frozenset[str]:
    kept = kept_names(config.train)
    if kept is None:
        return frozenset()
    return frozenset(activation.name for activation in present(config.model, group)) - kept


def fp8_names(model: ModelConfig) -> tuple[str, ...]:
    """Activations of this architecture that can be kept in FP8."""
    return tuple(a.name for a in _all(model) if a.fp8)


def offload_names(model: ModelConfig, keep: frozenset[str]) -> tuple[str, ...]:
    """Names of ``keep`` that are worth offloading: rows of tokens, not the experts' integers."""
    return tuple(a.name for a in _all(model) if a.name in keep and a.dtype == "compute")


def _all(model: ModelConfig):
    groups = ("dense",) * (model.dense_layers > 0) + ("moe",) * (model.dense_layers < model.layers)
    return list({a.name: a for group in groups for a in present(model, group)}.values())
