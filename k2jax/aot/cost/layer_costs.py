"""FLOPs and HBM bytes of a layer's products on one device, for one micro-batch: from the weight table.

Every product counts its FLOPs, and its weights, inputs and output once. A backward pass has two products for each; the
attention kernels have more, since they form the scores and their gradients again. Products with routed experts also
count the rows of partly filled sub-blocks, and read an expert's weights once for each row tile that holds rows of it.
"""

from __future__ import annotations

from typing import NamedTuple

from k2jax.aot.cost.activations import recomputed_matrices, recomputes_attention
from k2jax.aot.cost.expert_rows import BFLOAT16, GroupedProduct, exchange_parts, expert_tiles
from k2jax.config.schema import Config, ModelConfig
from k2jax.model.specs import model_specs
from k2jax.params import ParamSpec, named_specs


class Cost(NamedTuple):
    """FLOPs and HBM bytes on one device."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        """Sum of two costs."""
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, factor: float) -> Cost:
        """Scaled by ``factor``."""
        return Cost(self.flops * factor, self.bytes * factor)


class LayerCost(NamedTuple):
    """Products of one layer and micro-batch on one device.

    Attributes:
        forward: of the forward pass.
        backward: of the gradients.
        recomputed: of what the backward pass computes once more because the forward pass did not keep it.
    """

    forward: Cost
    backward: Cost
    recomputed: Cost = Cost()


def layer_cost(config: Config, group: str, tokens: float, ranks: int, shards: int = 1) -> LayerCost:
    """Costs of a layer.

    Args:
        config: the experiment; model, sequence length, recomputation and the parts of the exchange count.
        group: ``dense`` or ``moe``.
        tokens: of a micro-batch on one device.
        ranks: devices that share the experts.
        shards: devices that share everything else, each a slice of every matrix.
    """
    model = config.model
    products = {name: cost.times(1 / shards) for name, cost in matrix_costs(config, group, tokens, ranks).items()}
    matrices = sum(products.values(), Cost())
    key, value = model.attention_widths.key_dim, model.attention_widths.value_dim
    scores = tokens * model.heads * config.data.sequence_length / 2 / shards  # the visible half
    attention = Cost(2 * scores * (key + value))
    attention_backward = Cost(2 * scores * (4 * key + 3 * value))
    again = sum((products[name] for name in recomputed_matrices(config, group)), Cost())
    if recomputes_attention(config, group):
        again += attention
    return LayerCost(matrices + attention, matrices.times(2) + attention_backward, again)


def head_cost(model: ModelConfig, tokens: float, shards: int = 1) -> LayerCost:
    """Costs of the head, whose backward pass forms its logits again."""
    forward = _product(model.d_model, model.vocab, tokens).times(1 / shards)
    return LayerCost(forward, forward.times(3))


def matrix_costs(config: Config, group: str, tokens: float, ranks: int) -> dict[str, Cost]:
    """The forward products of a layer on one device, by the name of their matrix within the layer."""
    costs = {}
    for name, spec in named_specs(model_specs(config.model)):
        if not name.startswith(group + "/") or not spec.inputs:
            continue
        inner = name.removeprefix(group + "/")
        count = spec.size_of(tuple(axis for axis in spec.stack if axis not in ("layers", "experts")))
        inputs, outputs = spec.size_of(spec.inputs), spec.size_of(spec.outputs)
        if _is_routed(spec):
            products = count * config.model.moe.experts / ranks * exchange_parts(config, ranks)
            costs[inner] = _routed_product(inputs, outputs, expert_tiles(config, tokens, ranks)).times(products)
        else:
            costs[inner] = _product(inputs, outputs, tokens).times(count)
    return costs


def mean_routed_cost(model: ModelConfig, tokens: float, ranks: int) -> Cost:
    """The forward products of a layer's routed experts with the mean number of rows, without those of the tiles."""
    total = Cost()
    for name, spec in named_specs(model_specs(model)):
        if name.startswith("moe/experts") and _is_routed(spec):
            count = spec.size_of(tuple(axis for axis in spec.stack if axis not in ("layers", "experts")))
            count *= model.moe.experts / ranks
            rows = tokens * model.moe.active_experts * ranks / model.moe.experts
            total += _product(spec.size_of(spec.inputs), spec.size_of(spec.outputs), rows).times(count)
    return total


def _is_routed(spec: ParamSpec) -> bool:
    return "experts" in spec.stack and spec.role == "matrix"


def _product(inputs: int, outputs: int, rows: float) -> Cost:
    return Cost(2.0 * rows * inputs * outputs, BFLOAT16 * (inputs * outputs + rows * (inputs + outputs)))


def _routed_product(inputs: int, outputs: int, tiles: GroupedProduct) -> Cost:
    """The product of one expert's rows with one matrix."""
    moved = tiles.visits * inputs * outputs + tiles.rows * (inputs + outputs)
    return Cost(2.0 * tiles.computed * inputs * outputs, BFLOAT16 * moved)
