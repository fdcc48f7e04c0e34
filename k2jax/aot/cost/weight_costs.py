"""What weights cost by their layout alone: memory at rest, gathers and reductions, Newton-Schulz."""

from __future__ import annotations

from collections import defaultdict

from k2jax.aot.cost.collective_cost import AxisCollective, MeshNetwork
from k2jax.aot.cost.device_bytes import (
    FLOAT32,
    MOMENTS,
    empty_slots,
    gradient_bytes,
    local_size,
    weight_partitions,
)
from k2jax.aot.cost.expert_rows import BFLOAT16
from k2jax.config.schema import Config
from k2jax.optim import newton_schulz_flops
from k2jax.optim.groups import group_of
from k2jax.parallel.layout import Layout, entries
from k2jax.parallel.mesh import TOKEN_AXES
from k2jax.params import named_specs


class WeightCosts:
    """Costs of one device and step that follow from the layout of the weights and from the optimizer.

    Attributes:
        parameters: bytes at rest, in float32.
        moments: bytes of the optimizer's state.
        elements: of the compute copy.
        empty: bytes in pipeline slots without a layer.
        optimizer_flops: of Newton-Schulz; matrices are shared out evenly, each whole on one device.
    """

    def __init__(self, config: Config, layout: Layout, network: MeshNetwork):
        self._config, self._layout, self._network = config, layout, network
        mesh, optimizer = layout.mesh, config.optimizer
        self.parameters = self.moments = self.elements = 0.0
        for spec, rest, compute in weight_partitions(layout):
            size = FLOAT32 * local_size(spec, rest, mesh)
            self.parameters += size
            self.moments += size * MOMENTS[group_of(spec, optimizer)]
            self.elements += local_size(spec, compute, mesh)
        self.empty = empty_slots(config, layout)
        muon = [spec for _, spec in named_specs(layout.logical) if group_of(spec, optimizer) == "muon"]
        self.optimizer_flops = sum(newton_schulz_flops(spec, optimizer) for spec in muon) / mesh.size

    def gathers(self, times: float) -> list[AxisCollective]:
        """Gathering the compute copy in bfloat16, ``times`` in a step."""
        sizes: dict[tuple[str, ...], float] = defaultdict(float)
        for spec, rest, compute in weight_partitions(self._layout):
            axes = self._axes(set(sum(entries(spec, rest), ())) - set(sum(entries(spec, compute), ())))
            if axes:
                sizes[axes] += BFLOAT16 * local_size(spec, compute, self._layout.mesh)
        return [self._network.collective("all-gather", axes, size, times) for axes, size in sizes.items()]

    def reductions(self, times: float) -> list[AxisCollective]:
        """Reducing gradients over the devices that have other tokens, ``times`` in a step."""
        sizes: dict[tuple[str, ...], float] = defaultdict(float)
        for spec, _, compute in weight_partitions(self._layout):
            own = set(sum(entries(spec, compute), ()))
            axes = tuple(axis for axis in TOKEN_AXES if axis not in own and self._layout.mesh.shape.get(axis, 1) > 1)
            if axes:
                sizes[axes] += gradient_bytes(self._config) * local_size(spec, compute, self._layout.mesh)
        return [self._network.collective("reduce-scatter", axes, size, times) for axes, size in sizes.items()]

    def newton_schulz(self) -> list[AxisCollective]:
        """Bringing matrices that are cut at rest together in bfloat16, and sending the results back."""
        sizes: dict[tuple[str, ...], float] = defaultdict(float)
        for spec, rest, _ in weight_partitions(self._layout):
            if group_of(spec, self._config.optimizer) != "muon":
                continue
            names = zip(spec.axes, entries(spec, rest), strict=True)
            axes = self._axes({axis for name, cut in names if name not in spec.stack for axis in cut})
            if axes:
                sizes[axes] += BFLOAT16 * local_size(spec, rest, self._layout.mesh)
        return [self._network.collective("all-to-all", axes, size, 2) for axes, size in sizes.items()]

    def _axes(self, names: set[str]) -> tuple[str, ...]:
        """Those of the names that are axes of more than one device, in the order of the mesh."""
        shape = self._layout.mesh.shape
        return tuple(axis for axis in shape if axis in names and shape[axis] > 1)
