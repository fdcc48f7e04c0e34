"""What a config would take on a topology, from formulas alone: in milliseconds, where compiling takes minutes.

The arithmetic is that of ``roofline``, on the same mesh and the same table of a pipeline that the step would use; only
what compiled programs tell is put in by rule. Products are counted from the weight table. A pipeline's backward tick
runs its chunk forward again and then backward; ``full`` recomputes each layer once more; ``selective`` is counted as
``full``, which costs more and keeps less. A forward exchanges twice a layer (there and back), a backward tick four
times, less the last return of a chunk, which nobody waits for, and once more under ``full``. A pipeline's sends to the
neighbour hide behind the next tick, nothing else hides.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from k2jax.analysis.chips import Chip
from k2jax.analysis.hbm import Hbm
from k2jax.analysis.layer_costs import BFLOAT16, layer_costs, owners, residual_bytes
from k2jax.analysis.placed import FLOAT32, MOMENTS, empty_slots, gradient_bytes, local_size, placed
from k2jax.analysis.roofline import Roofline, Traffic, Work, model_flops_per_token, roofline
from k2jax.analysis.wires import Sent, Wires, wires_of
from k2jax.config.schema import Config
from k2jax.optim.groups import group_of
from k2jax.optim.muon import matrix_parts
from k2jax.parallel.layout import Layout, entries, make_layout
from k2jax.parallel.mesh import TOKEN_AXES, make_mesh, rows_per_micro_batch
from k2jax.parallel.schedule import build
from k2jax.params import named_specs

SETTLED = 4  # micro-batches over stages, beyond which a schedule needs no more slots


class Estimate(NamedTuple):
    """A config on a topology.

    Attributes:
        mesh: axes and their sizes.
        tokens: of a step.
        hbm: of a device.
        flops: of a device and step, all that is executed.
        moved: bytes of collectives by kind and axes, of a device and step.
        bubble: share of the time that stages idle.
        roofline: the estimate.
    """

    mesh: dict[str, int]
    tokens: int
    hbm: Hbm
    flops: float
    moved: dict[str, float]
    bubble: float
    roofline: Roofline


def estimate(config: Config, chip: Chip, devices: list[Any], *, gather_per_layer: bool = False) -> Estimate:
    """The estimate of a config.

    Args:
        config: the experiment; ``model``, ``parallel``, ``optimizer``, ``train`` and the sequence length count.
        chip: of the devices.
        devices: JAX's abstract devices of the topology.
        gather_per_layer: weights are gathered layer by layer in every pass and their gradients reduced after it, and
            no copy of all is kept (FSDP), where k2jax gathers them once a step.

    Raises:
        UserError: the config does not fit the number of devices, or cannot be cut as it says.
    """
    case = _case(config, chip, devices, gather_per_layer)
    mesh = case.layout.mesh
    tokens = config.train.batch_size * config.data.sequence_length
    work, traffic = case.work(), [*case.exchanges(), *case.around(), *case.weights(), *case.newton_schulz_traffic()]
    flops, state = case.optimizer_flops(), case.at_rest()
    optimizer = Work(1, flops, 2 * sum(state) + state[0])
    model_flops = tokens * model_flops_per_token(config.model, config.data.sequence_length)
    times = [Traffic(one.seconds, one.hidden) for one in traffic]
    moved: dict[str, float] = {}
    for one in traffic:
        moved[one.what] = moved.get(one.what, 0.0) + one.bytes
    return Estimate(
        dict(mesh.shape),
        tokens,
        case.hbm(chip),
        sum(one.times * one.flops for one in work) + flops,
        moved,
        case.bubble(),
        roofline(chip, mesh.size, work, optimizer, times, model_flops),
    )


def memory(config: Config, chip: Chip, devices: list[Any]) -> Hbm:
    """The HBM of the estimate alone, which takes a tenth of the time.

    Raises:
        UserError: as ``estimate``.
    """
    return _case(config, chip, devices, False).hbm(chip)


def _case(config: Config, chip: Chip, devices: list[Any], gather_per_layer: bool) -> _Case:
    mesh = make_mesh(config, devices)
    return _Case(config, make_layout(config, mesh), wires_of(chip, mesh), gather_per_layer)


@functools.cache
def _slots(kind: str, stages: int, rounds: int, chunks: int, micro_batches: int) -> int:
    table = build(kind, stages, rounds, chunks, micro_batches)
    return table.slots + table.cotangent_slots


class _Case:
    """One config, laid out."""

    def __init__(self, config: Config, layout: Layout, wires: Wires, gather_per_layer: bool):
        self.config, self.layout, self.wires, self.gathered = config, layout, wires, gather_per_layer
        self.shape = dict(layout.mesh.shape)
        self.stages, self.ranks = self.shape["stage"], self.shape["expert"]
        groups = self.shape["data"] * self.ranks
        self.micro_batches = config.train.micro_batches
        self.tokens = rows_per_micro_batch(config, layout.mesh) // groups * config.data.sequence_length
        self.stream = self.tokens * config.model.d_model * BFLOAT16  # of the residual stream
        self.full = config.train.remat != "none"
        self.dense = config.model.dense_layers if layout.body == "moe" else 0
        self.chunk = layout.chunk_layers
        self.rounds = config.parallel.virtual_stages
        # Forward ticks, and as many backward ones: the last micro-batch enters at _start and passes all chunks.
        last = self.micro_batches - 1
        start = last // self.stages * self.stages * self.rounds + last % self.stages
        self.ticks = start + layout.chunks if self.stages > 1 else self.micro_batches

    def _layer(self, group: str, shards: int = 1):
        model, sequence = self.config.model, self.config.data.sequence_length
        return layer_costs(model, group, sequence, self.tokens, self.ranks, shards)

    def work(self) -> list[Work]:
        body, dense, head = (
            self._layer(self.layout.body),
            self._layer("dense", self.stages),
            self._layer("head", self.stages),
        )
        again = 1 if self.full else 0
        if self.stages == 1:
            layer = body.forward.times(1 + again) + body.backward
            other = (dense.forward.times(1 + again) + dense.backward).times(self.dense) + head.backward + head.forward
            whole = layer.times(self.chunk) + other
            return [Work(self.micro_batches, *whole)]
        forward = body.forward.times(self.chunk)
        backward = (body.forward.times(1 + again) + body.backward).times(self.chunk)
        around = (dense.forward.times(2) + dense.backward).times(self.dense) + head.forward + head.backward
        both, alone = self._phases()
        return [
            Work(alone, *forward),
            Work(both, *(forward + backward)),
            Work(alone, *backward),
            Work(self.micro_batches, *around),
        ]

    def _phases(self) -> tuple[int, int]:
        """Ticks with a forward and a backward, and with a forward alone (as many have a backward alone)."""
        if self.config.parallel.schedule == "1f1b":
            return self.ticks - self.layout.chunks, self.layout.chunks
        return 0, self.ticks

    def bubble(self) -> float:
        if self.stages == 1:
            return 0.0
        return 1.0 - self.micro_batches * self.layout.chunks / self.stages / self.ticks

    def exchanges(self) -> list[Sent]:
        """Of tokens with the experts' ranks."""
        model, parallel = self.config.model, self.config.parallel
        if self.ranks == 1 or self.layout.body != "moe":
            return []
        passes = self.ticks * self.chunk if self.stages > 1 else self.micro_batches * (model.layers - self.dense)
        if self.stages > 1:  # forward: both; backward: again, less the chunk's last return, and the transposes
            ways = 2 + (4 - 1 / self.chunk) + (1 if self.full else 0)
        else:
            ways = 4 + (1 if self.full else 0)
        if parallel.expert_backend in ("dense", "ring"):
            size = self.ranks * self.stream
            there = self.wires.send("all-gather", ("expert",), size, passes * ways / 2)
            back = self.wires.send("reduce-scatter", ("expert",), size * FLOAT32 / BFLOAT16, passes * ways / 2)
            return [there, back]
        room = self.ranks * parallel.expert_slots
        rows = min(owners(model, self.ranks), room) if parallel.expert_backend != "a2a" else room
        kind = "all-to-all" if parallel.expert_backend == "a2a" else "ragged-all-to-all"
        return [self.wires.send(kind, ("expert",), rows * self.stream, passes * ways)]

    def around(self) -> list[Sent]:
        """A pipeline's sends to the neighbour, and the sums of its entrance and exit."""
        if self.stages == 1:
            return []
        sums = 4 + 6 * self.dense  # as counted in a compiled step
        return [
            self.wires.shift("stage", self.stream, 2 * self.ticks),
            self.wires.send("all-reduce", ("stage",), self.stream, self.micro_batches * sums),
        ]

    def weights(self) -> list[Sent]:
        """Gathering the compute copy, and reducing gradients."""
        gathers: dict[tuple[str, ...], float] = {}
        reductions: dict[tuple[str, ...], float] = {}
        for spec, rest, compute in placed(self.layout):
            size = local_size(spec, compute, self.layout.mesh)
            own = set(sum(entries(spec, compute), ()))
            axes = tuple(
                axis for axis in self.shape if axis in set(sum(entries(spec, rest), ())) - own and self.shape[axis] > 1
            )
            batch = tuple(axis for axis in TOKEN_AXES if axis not in own and self.shape.get(axis, 1) > 1)
            if axes:
                gathers[axes] = gathers.get(axes, 0.0) + BFLOAT16 * size
            if batch:
                reductions[batch] = reductions.get(batch, 0.0) + gradient_bytes(self.config) * size
        passes = self.micro_batches if self.gathered else 1
        found = [
            self.wires.send("all-gather", axes, size, passes * (2 if self.gathered else 1))
            for axes, size in gathers.items()
        ]
        return found + [self.wires.send("reduce-scatter", axes, size, passes) for axes, size in reductions.items()]

    def newton_schulz_traffic(self) -> list[Sent]:
        """Matrices that lie cut at rest come together in bfloat16 and go back."""
        cut: dict[tuple[str, ...], float] = {}
        for spec, rest, _ in placed(self.layout):
            if group_of(spec, self.config.optimizer) != "muon":
                continue
            within = {
                axis
                for name, axes in zip(spec.axes, entries(spec, rest), strict=True)
                for axis in axes
                if name not in spec.stack
            }
            if axes := tuple(axis for axis in self.shape if axis in within and self.shape[axis] > 1):
                cut[axes] = cut.get(axes, 0.0) + BFLOAT16 * local_size(spec, rest, self.layout.mesh)
        return [self.wires.send("all-to-all", axes, size, 2) for axes, size in cut.items()]

    def optimizer_flops(self) -> float:
        """Newton-Schulz of a device's share: every matrix on one device, evenly."""
        optimizer, total = self.config.optimizer, 0.0
        for _, spec in named_specs(self.layout.logical):
            if group_of(spec, optimizer) == "muon":
                for part in matrix_parts(spec, optimizer.split_heads):
                    n, m = sorted((part.spec.size_of(part.spec.inputs), part.spec.size_of(part.spec.outputs)))
                    count = part.spec.size_of(part.spec.stack)
                    total += count * optimizer.newton_schulz_steps * (4.0 * n * n * m + 2.0 * n**3)
        return total / self.layout.mesh.size

    def at_rest(self) -> tuple[float, float]:
        """Bytes of parameters and of the optimizer's state."""
        sizes, moments = 0.0, 0.0
        for spec, rest, _ in placed(self.layout):
            size = FLOAT32 * local_size(spec, rest, self.layout.mesh)
            sizes += size
            moments += size * MOMENTS[group_of(spec, self.config.optimizer)]
        return sizes, moments

    def hbm(self, chip: Chip) -> Hbm:
        """All of a device."""
        return Hbm(self.memory(), chip.hbm_bytes / chip.devices, empty_slots(self.config, self.layout))

    def memory(self) -> dict[str, float]:
        """By kind; the optimizer's own temporaries, two more trees of updates, come when activations are gone."""
        params, moments = self.at_rest()
        elements = sum(local_size(spec, compute, self.layout.mesh) for spec, _, compute in placed(self.layout))
        share = 2 / self.config.model.layers if self.gathered else 1.0
        copy, gradients = BFLOAT16 * elements * share, gradient_bytes(self.config) * elements * share
        activations = self._activations()
        return {
            "parameters": params,
            "optimizer state": moments,
            "compute copy": copy,
            "gradients": gradients,
            "activations": activations,
            "other temporaries": max(0.0, 2 * params - activations - copy),
        }

    def _activations(self) -> float:
        residuals = residual_bytes(self.config, self.layout.body, self.tokens, self.ranks)
        layers = self.chunk if self.stages > 1 else self.config.model.layers
        working = residuals + layers * self.stream if self.full else layers * residuals
        if self.stages == 1:
            return working
        if self.config.parallel.schedule == "scan":
            return working + self.ticks * self.stream
        count = min(self.micro_batches, SETTLED * self.stages)
        kind = "gpipe" if self.config.parallel.schedule == "gpipe" else "1f1b"
        slots = _slots(kind, self.stages, self.rounds, self.layout.chunks, count)
        return working + (slots + 5) * self.stream  # each kind has a bin, and three lie between ticks
