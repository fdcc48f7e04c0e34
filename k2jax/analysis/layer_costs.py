"""What one device computes, keeps and sends for a micro-batch in one layer: from the weight table, not from a program.

Products count their FLOPs, and their weights, inputs and outputs once. A backward pass has two products for each; those
of the attention kernels are more, since they form the scores and their gradients again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from k2jax.config.schema import Config, ModelConfig
from k2jax.model.specs import model_specs
from k2jax.params import named_specs

BFLOAT16 = 2


class Cost(NamedTuple):
    """Of one device."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        """Both."""
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, factor: float) -> Cost:
        """So many."""
        return Cost(self.flops * factor, self.bytes * factor)


class Layer(NamedTuple):
    """Products of a layer, of one micro-batch on one device."""

    forward: Cost
    backward: Cost


def layer_costs(model: ModelConfig, group: str, sequence: int, tokens: float, ranks: int, shards: int = 1) -> Layer:
    """A layer of the group ``dense`` or ``moe``, or the ``head``.

    Args:
        model: the architecture.
        group: what to count.
        sequence: tokens of a row.
        tokens: of a micro-batch on one device.
        ranks: that share the experts.
        shards: devices that share everything else, each a slice of every matrix.
    """
    matrices = _matrices(model, group, tokens, ranks).times(1 / shards)
    if group == "head":
        return Layer(matrices, matrices.times(3))  # it recomputes its logits
    key, value = _widths(model)
    scores = tokens * model.heads * sequence / 2 / shards  # the visible half
    forward = Cost(2 * scores * (key + value))
    backward = Cost(2 * scores * (4 * key + 3 * value))
    return Layer(matrices + forward, matrices.times(2) + backward)


def routed_experts(model: ModelConfig, tokens: float, ranks: int) -> Cost:
    """The forward products of a layer's routed experts, of one device, with as many choices as there are on average."""
    return _matrices(model, "moe/experts", tokens, ranks)


def _matrices(model: ModelConfig, group: str, tokens: float, ranks: int) -> Cost:
    if group == "head":
        return _product(1, model.d_model, model.vocab, tokens)
    total = Cost()
    for name, spec in named_specs(model_specs(model)):
        if not name.startswith(group + "/") or not spec.inputs:
            continue
        routed = spec.axes.count("experts") and spec.role == "matrix"
        count = spec.size_of(tuple(axis for axis in spec.stack if axis not in ("layers", "experts")))
        through = tokens
        if routed:
            count *= model.experts / ranks
            through = tokens * model.active_experts * ranks / model.experts
        total += _product(count, spec.size_of(spec.inputs), spec.size_of(spec.outputs), through)
    return total


def _product(count: float, inputs: int, outputs: int, tokens: float) -> Cost:
    moved = inputs * outputs + tokens * (inputs + outputs)
    return Cost(2.0 * count * tokens * inputs * outputs, BFLOAT16 * count * moved)


def _widths(model: ModelConfig) -> tuple[int, int]:
    if model.attention == "gqa":
        return model.head_dim, model.head_dim
    return model.qk_nope_dim + model.qk_rope_dim, model.v_dim


def residual_bytes(config: Config, group: str, tokens: float, ranks: int) -> float:
    """What a layer's backward pass needs of its forward, in bfloat16, where nothing is recomputed.

    The residual stream and both normalised copies, the attention's latents, operands and output, and of a feed-forward
    its gate and up projections; with experts on several ranks also the buffer of rows, which has room for
    ``expert_slots`` of the tokens of every rank.
    """
    model = config.model
    key, value = _widths(model)
    width = 4.0 * model.d_model + model.heads * (2 * key + 2 * value)
    if model.attention == "mla":
        width += (model.q_lora_rank or 0) * 2 + model.kv_lora_rank * 2 + model.qk_rope_dim
    if group == "dense":
        width += 3 * model.dense_ffn
    else:
        copies = room_for_copies(config, ranks) * model.active_experts
        width += (2 * copies + 3 * model.shared_experts) * model.expert_ffn
        width += ranks * config.parallel.expert_slots * model.d_model if ranks > 1 else 0
    return BFLOAT16 * tokens * width


def room_for_copies(config: Config, ranks: int) -> float:
    """Copies of tokens that the experts' kernels of one of the ranks have room for, over the mean; never beyond all."""
    return min(config.parallel.expert_copies, ranks) if ranks > 1 else 1.0


def owners(model: ModelConfig, ranks: int) -> float:
    """Ranks that own at least one of a token's experts, on average over uniform choices."""
    others = math.comb(model.experts - model.experts // ranks, model.active_experts)
    return ranks * (1 - others / math.comb(model.experts, model.active_experts))
