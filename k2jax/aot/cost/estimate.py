"""What a config would take on a topology, from formulas alone: in milliseconds, where compiling takes minutes.

The arithmetic is that of ``roofline``, on the mesh and with the pipeline table that the step would use. Products are
counted from the weight table, activations from the declared table. What only a compiled program can tell follows rules:

- A pipeline's backward tick runs its chunk forward again and then backward; with residuals kept across ticks, only what
  leads to the others. A policy within counts as if all that it recomputes had been computed before: at most that.
- A forward pass exchanges tokens twice a layer, a backward tick four times, less the last return of a chunk, whose
  result is not read; where ``expert_input`` is not kept, once more. Across ticks kept, each layer has the exchanges of
  its backward and, without ``expert_input``, one more.
- Of an exchange in c parts, 1/c is exposed as long as the experts' products take longer than the rest. This is
  cautious: XLA also hides exchanges behind other work, in the compiled step of Kimi K2 (docs/parallel.md) 40 % of them
  in one part and 79 % in two. Only the backends ``a2a`` and ``ragged`` are asynchronous.
- A pipeline's sends to the next stage hide behind the next tick. No other collective is hidden.
- Offloaded activations go to the host and come back while the layers compute: a tick takes as long as the longest of
  compute, HBM traffic and host traffic.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

from k2jax.aot.cost.activations import (
    KeptActivations,
    keeping,
    kept_across,
    kept_activations,
    recomputes_exchange,
)
from k2jax.aot.cost.collective_cost import AxisCollective, MeshNetwork, mesh_network
from k2jax.aot.cost.device_bytes import FLOAT32, gradient_bytes
from k2jax.aot.cost.expert_rows import (
    BFLOAT16,
    backward_bytes,
    exchange_parts,
    mean_owners,
)
from k2jax.aot.cost.hbm import Hbm
from k2jax.aot.cost.layer_costs import Cost, LayerCost, head_cost, layer_cost, matrix_costs
from k2jax.aot.cost.roofline import (
    CollectiveTime,
    Roofline,
    Work,
    device_seconds,
    model_flops_per_token,
    roofline,
)
from k2jax.aot.cost.weight_costs import WeightCosts
from k2jax.chips import Chip
from k2jax.config.schema import Config
from k2jax.parallel.layout import Layout, make_layout
from k2jax.parallel.mesh import make_mesh, rows_per_micro_batch
from k2jax.parallel.schedule import build_pipeline_schedule, first_tick

SETTLED = 4  # micro-batches over stages, beyond which a schedule needs no more slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate of a config on a topology.

    Attributes:
        mesh: axes and their sizes.
        tokens: of a step, over all devices.
        hbm: of a device.
        host_bytes: of a device's offloaded activations, in the host's memory at a time.
        flops: executed by a device in a step, recomputation and idle ticks included.
        collective_bytes: of collectives by kind and axes, on a device in a step.
        bubble: share of the time that pipeline stages idle.
        roofline: the times.
    """

    mesh: dict[str, int]
    tokens: int
    hbm: Hbm
    host_bytes: float
    flops: float
    collective_bytes: dict[str, float]
    bubble: float
    roofline: Roofline


class Placement(NamedTuple):
    """Weights on a mesh: what configs share that differ in batch, recomputation or parts of the exchange alone."""

    chip: Chip
    layout: Layout
    network: MeshNetwork
    weights: WeightCosts


def place(config: Config, chip: Chip, devices: list[Any]) -> Placement:
    """The placement of a config's weights on devices of a topology.

    Raises:
        UserError: the config does not fit the number of devices, or its sizes do not divide.
    """
    mesh = make_mesh(config, devices)
    layout, network = make_layout(config, mesh), mesh_network(chip, mesh)
    return Placement(chip, layout, network, WeightCosts(config, layout, network))


def estimate(config: Config, chip: Chip, devices: list[Any], *, gather_per_layer: bool = False) -> Estimate:
    """The estimate of a config.

    Args:
        config: the experiment; ``model``, ``parallel``, ``optimizer``, ``train`` and the sequence length count.
        chip: of the devices.
        devices: JAX's abstract devices of the topology.
        gather_per_layer: weights are gathered layer by layer in every pass and their gradients reduced after it, and
            no copy of all is kept (FSDP), where k2jax gathers them once a step.

    Raises:
        UserError: as ``place``.
    """
    return Estimator(config, place(config, chip, devices), gather_per_layer=gather_per_layer).estimate()


class Estimator:
    """The formulas for one config on a placement."""

    def __init__(self, config: Config, placement: Placement, *, gather_per_layer: bool = False):
        """Raises UserError where the batch does not fill the micro-batches."""
        self.config, self.gathered = config, gather_per_layer
        self.chip, self.layout, self.network, self.weights = placement
        self.shape = dict(self.layout.mesh.shape)
        self.stages, self.ranks = self.shape["stage"], self.shape["expert"]
        groups = self.shape["data"] * self.ranks
        self.micro_batches = config.train.micro_batches
        self.tokens = rows_per_micro_batch(config, self.layout.mesh) // groups * config.data.sequence_length
        self.stream_bytes = self.tokens * config.model.d_model * BFLOAT16  # of the residual stream
        self.dense_layers = config.model.dense_layers if self.layout.layer_group == "moe" else 0
        # Forward ticks, and as many backward ones: the last micro-batch enters at `start` and passes all chunks.
        start = first_tick(self.micro_batches - 1, self.stages, config.parallel.virtual_stages)
        self.ticks = start + self.layout.chunks if self.stages > 1 else self.micro_batches

    def estimate(self) -> Estimate:
        """All of it."""
        config, mesh = self.config, self.layout.mesh
        tokens = config.train.batch_size * config.data.sequence_length
        work, collectives = self.work(), self.collectives()
        state = 2 * (self.weights.parameters + self.weights.moments) + self.weights.parameters
        optimizer = Work(1, self.weights.optimizer_flops, state)
        collective_bytes: dict[str, float] = {}
        for collective in collectives:
            what, size = collective.what, collective.bytes
            collective_bytes[what] = collective_bytes.get(what, 0.0) + size
        return Estimate(
            mesh=dict(mesh.shape),
            tokens=tokens,
            hbm=self.hbm(),
            host_bytes=self._host_bytes(),
            flops=sum(part.times * part.flops for part in work) + optimizer.flops,
            collective_bytes=collective_bytes,
            bubble=self.bubble(),
            roofline=roofline(
                self.chip,
                mesh.size,
                work,
                optimizer,
                [CollectiveTime(collective.seconds, collective.hidden) for collective in collectives],
                tokens * model_flops_per_token(config.model, config.data.sequence_length),
            ),
        )

    def work(self) -> list[Work]:
        """Products and host traffic, tick by tick."""
        body, dense, head = self._layer(self.layout.layer_group), self._layer("dense"), self._head()
        if self.stages == 1:
            passes = (body.forward + body.recomputed + body.backward).times(self.layout.chunk_layers)
            passes += (dense.forward + dense.recomputed + dense.backward).times(self.dense_layers)
            passes += head.forward + head.backward
            return [Work(self.micro_batches, passes.flops, passes.bytes, 2 * self._host_bytes())]
        chunk = self.layout.chunk_layers
        forward = body.forward.times(chunk)
        backward = (self._again(body) + body.backward).times(chunk)
        around = (dense.forward.times(2) + dense.backward).times(self.dense_layers) + head.forward + head.backward
        host = 2 * self._host_bytes()
        both, alone = self._phases()
        return [
            Work(alone, *forward),
            Work(both, *(forward + backward), host),
            Work(alone, *backward, host),
            Work(self.micro_batches, *around),
        ]

    def _again(self, body: LayerCost) -> Cost:
        """What a pipeline's backward tick computes of a layer once more."""
        train = self.config.train
        if not train.keep_across:
            return body.forward + body.recomputed
        outer = keeping(self.config, train.keep_across)
        inner = dataclasses.replace(
            self.config, train=dataclasses.replace(train, keep=(*train.keep, *train.keep_across))
        )
        group, tokens = self.layout.layer_group, self.tokens
        return sum((layer_cost(config, group, tokens, self.ranks).recomputed for config in (outer, inner)), Cost())

    def bubble(self) -> float:
        """Share of the time that pipeline stages idle."""
        if self.stages == 1:
            return 0.0
        return 1.0 - self.micro_batches * self.layout.chunks / self.stages / self.ticks

    def collectives(self) -> list[AxisCollective]:
        """Every collective of a step."""
        passes = self.micro_batches if self.gathered else 1
        gathers = self.weights.gathers(passes * (2 if self.gathered else 1))
        return [
            *self._exchanges(),
            *self._pipeline_sends(),
            *gathers,
            *self.weights.reductions(passes),
            *self.weights.newton_schulz(),
        ]

    def hbm(self) -> Hbm:
        """Memory of a device.

        Beside what stays, the larger of two temporaries counts: rows of the experts' backward pass, or two trees of
        updates in the optimizer, which may lie where activations and the compute copy were.
        """
        limit, empty = self.chip.hbm_bytes / self.chip.devices, self.weights.empty
        parameters, elements = self.weights.parameters, self.weights.elements
        share = 2 / self.config.model.layers if self.gathered else 1.0
        copy, activations = BFLOAT16 * elements * share, self._activations()
        routed = self.layout.layer_group == "moe"
        experts = backward_bytes(self.config, self.tokens, self.ranks) if routed else 0.0
        parts = {
            "parameters": parameters,
            "optimizer state": self.weights.moments,
            "compute copy": copy,
            "gradients": gradient_bytes(self.config) * elements * share,
            "activations": activations,
            "other temporaries": max(experts, 2 * parameters - activations - copy),
        }
        return Hbm(parts, limit, empty)

    def _layer(self, group: str) -> LayerCost:
        """A layer of the body, or a dense one around a pipeline, of which every stage has a slice."""
        shards = self.stages if group != self.layout.layer_group else 1
        return layer_cost(self.config, group, self.tokens, self.ranks, shards)

    def _head(self) -> LayerCost:
        return head_cost(self.config.model, self.tokens, self.stages)

    def _phases(self) -> tuple[int, int]:
        """Ticks with a forward and a backward pass, and with a forward pass alone (as many have a backward alone)."""
        if self.config.parallel.executor == "1f1b":
            return self.ticks - self.layout.chunks, self.layout.chunks
        return 0, self.ticks

    def _exchanges(self) -> list[AxisCollective]:
        """Exchanges of tokens with the experts' ranks."""
        if self.ranks == 1 or self.layout.layer_group != "moe":
            return []
        config, chunk = self.config, self.layout.chunk_layers
        again = recomputes_exchange(config, "moe")
        passes = self.ticks * chunk if self.stages > 1 else self.micro_batches * self._live_layers()
        if config.train.keep_across:
            ways = passes * (2 + 2 + ("expert_input" not in config.train.keep_across) * (1 + again))
        else:
            ways = passes * ((2 + 4 - 1 / chunk if self.stages > 1 else 4) + again)
        backend = config.parallel.expert_backend
        room = self.ranks * config.parallel.expert_slots
        if backend == "dense":
            size = self.ranks * self.stream_bytes
            exchanges = [
                self.network.collective("all-gather", ("expert",), size, ways / 2),
                self.network.collective("reduce-scatter", ("expert",), size * FLOAT32 / BFLOAT16, ways / 2),
            ]
        elif backend == "a2a":
            exchanges = [self.network.collective("all-to-all", ("expert",), room * self.stream_bytes, ways)]
        else:
            rows = min(mean_owners(config.model, self.ranks), room)
            exchanges = [self.network.collective("ragged-all-to-all", ("expert",), rows * self.stream_bytes, ways)]
        hidden = self._hidden_exchanges(sum(exchange.seconds for exchange in exchanges), passes)
        return [exchange._replace(hidden=exchange.seconds * hidden) for exchange in exchanges]

    def _hidden_exchanges(self, seconds: float, passes: float) -> float:
        """Share of the exchanges that lies behind the experts' products of another part."""
        parts = exchange_parts(self.config, self.ranks)
        if parts == 1 or self.config.parallel.expert_backend == "dense":
            return 0.0
        products = matrix_costs(self.config, "moe", self.tokens, self.ranks)
        flops = sum(cost.flops for name, cost in products.items() if name.startswith("experts/"))
        compute = device_seconds(self.chip, passes * flops * (4 if self.stages > 1 else 3), 0.0)[0]
        return min(1.0, compute / seconds) * (1 - 1 / parts)

    def _pipeline_sends(self) -> list[AxisCollective]:
        """A pipeline's sends to the next stage, and the sums of the embedding, the dense layers and the loss."""
        if self.stages == 1:
            return []
        sums = 4 + 6 * self.dense_layers  # as counted in a compiled step
        return [
            self.network.shift("stage", self.stream_bytes, 2 * self.ticks),
            self.network.collective("all-reduce", ("stage",), self.stream_bytes, self.micro_batches * sums),
        ]

    def _kept(self, group: str) -> KeptActivations:
        if group == "dense" and not self.config.model.dense_layers:
            return KeptActivations(0.0, 0.0, 0.0)
        return kept_activations(self.config, group, self.tokens, self.ranks)

    def _live_layers(self) -> int:
        """Layers of the body whose activations live at the same time."""
        return self.layout.chunk_layers if self.stages > 1 else self.config.model.layers - self.dense_layers

    def _live_dense(self) -> int:
        """The same of leading dense layers; around a pipeline they are recomputed from their input."""
        return self.dense_layers if self.stages == 1 else 0

    def _host_bytes(self) -> float:
        """Offloaded activations that are in the host's memory at the same time."""
        body, dense = self._kept(self.layout.layer_group).host, self._kept("dense").host
        return body * self._live_layers() + dense * self._live_dense()

    def _activations(self) -> float:
        """Activations that are kept, those of one layer while its backward pass runs, and a pipeline's inputs."""
        body, dense = self._kept(self.layout.layer_group), self._kept("dense")
        chunk, across = self.layout.chunk_layers, bool(self.config.train.keep_across)
        live = 1 if across else self._live_layers()  # each layer's backward begins with what lies in the slots
        kept = body.device * live + dense.device * self._live_dense()
        at_work = max(body.all - body.device, (dense.all - dense.device) if self._live_dense() else 0.0)
        if self.stages == 1:
            return kept + at_work
        if self.config.parallel.executor == "autodiff":
            return kept + at_work + self.ticks * self.stream_bytes
        count = min(self.micro_batches, SETTLED * self.stages)
        slots, cotangents = _slots(self.stages, self.config.parallel.virtual_stages, self.layout.chunks, count)
        residuals = kept_across(self.config, self.layout.layer_group, self.tokens, self.ranks, chunk)
        # Each kind has a bin, and three lie between ticks.
        return kept + at_work + (slots + cotangents + 5) * self.stream_bytes + (slots + 1) * residuals


@functools.cache
def _slots(stages: int, rounds: int, chunks: int, micro_batches: int) -> tuple[int, int]:
    """Of activations and of cotangents."""
    table = build_pipeline_schedule(stages, rounds, chunks, micro_batches)
    return table.slots, table.cotangent_slots
