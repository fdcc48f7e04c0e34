"""Compiled programs and estimates as text tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import dataclasses
import math
from typing import Any

from k2jax.aot.cost.hbm import Hbm
from k2jax.aot.cost.published import PublishedRun
from k2jax.aot.cost.roofline import COMPUTE, HOST, LINK, MEMORY, Roofline
from k2jax.aot.cost.sweep import Candidate
from k2jax.aot.cost.tower_cost import TowerShare
from k2jax.aot.kernels import CompiledKernel
from k2jax.aot.program import ProgramReport
from k2jax.aot.serving import ServingReport
from k2jax.aot.training import TrainingReport
from k2jax.report.table import duration, percent, quantity, significant, text_table


def column_table(columns: dict[str, Callable[[Any], Any]], items: Iterable[Any]) -> str:
    """A row for every item; columns are what their header says of an item, numbers with three digits."""
    cells = ([cell(item) for cell in columns.values()] for item in items)
    return text_table(
        tuple(columns), [[significant(cell) if isinstance(cell, float) else cell for cell in row] for row in cells]
    )


def kernel_table(kernels: list[CompiledKernel]) -> str:
    """A block for each kernel, direction and shape, a line for each topology."""
    columns = {
        "topology": lambda kernel: kernel.topology,
        "VMEM MiB": lambda kernel: kernel.vmem_bytes / 2**20,
        "of": lambda kernel: kernel.vmem_limit_bytes >> 20,
        "HBM temp MB": lambda kernel: kernel.temp_bytes / 1e6,
        "in all": lambda kernel: kernel.hbm_bytes / 1e6,
        "GFLOP": lambda kernel: kernel.flops / 1e9,
        "MB": lambda kernel: kernel.bytes / 1e6,
        "roofline ms": lambda kernel: 1e3 * kernel.roofline_seconds,
        "bound": lambda kernel: kernel.bound,
        "compiled in s": lambda kernel: kernel.compile_seconds,
    }
    blocks: dict[str, list[CompiledKernel]] = {}
    for kernel in kernels:
        blocks.setdefault(f"{kernel.kernel}, {kernel.direction}: {kernel.shape}", []).append(kernel)
    return "\n\n".join(f"{title}\n{column_table(columns, block)}" for title, block in blocks.items())


def training_table(report: TrainingReport, published: list[PublishedRun]) -> str:
    """A compiled step: memory, collectives, work, time, and the same arithmetic for published runs."""
    lines = [
        f"{report.topology}, {mesh_text(report.mesh)}: {quantity(report.tokens)} tokens a step, "
        f"compiled in {duration(report.compile_seconds)}",
        f"HBM of a device\n{hbm_table(report.hbm)}",
        f"Collectives of a device, in a step, at {LINK:.0%} of their links\n{_collective_table(report)}",
        f"Work of a device, in a step\n{_work_table(report)}",
        f"Time of a step, an estimate: nothing was run\n{_time_table(report.roofline, report.bubble)}",
        *([f"Of these, the tower's\n{tower_table(report, report.tower)}"] if report.tower else []),
        f"The same arithmetic on published runs\n{_published_table(published)}",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def serving_table(report: ServingReport) -> str:
    """A compiled program of the engine: memory, collectives, and a step's time."""
    time, devices = report.roofline, math.prod(report.mesh.values())
    rows = [
        (f"{quantity(report.work.flops)} FLOPs, at {COMPUTE:.0%} of peak", significant(1e3 * time.compute)),
        (f"{quantity(report.work.bytes)} bytes of HBM, at {MEMORY:.0%} of bandwidth", significant(1e3 * time.memory)),
        (f"collectives, at {LINK:.0%} of their links, without latency", significant(1e3 * time.network)),
        ("of these, not hidden behind compute", significant(1e3 * time.exposed)),
        ("estimate: the longer of the first two + not hidden", significant(1e3 * time.seconds)),
    ]
    rate = report.tokens / time.seconds
    lines = [
        f"{report.mode} on {report.topology}, {mesh_text(report.mesh)}: {report.slots:,} sequences of "
        f"{report.context:,} tokens, {report.tokens:,} new tokens a step, compiled in "
        f"{duration(report.compile_seconds)}",
        f"HBM of a device\n{hbm_table(report.hbm)}",
        f"Collectives of a device, in a step, at {LINK:.0%} of their links\n{_collective_table(report)}",
        f"Time of a step, an estimate: nothing was run\n{text_table(('', 'ms'), rows)}",
        f"{quantity(rate)} tokens/s, {significant(rate / devices)} a device",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def sweep_table(candidates: list[Candidate], limit: int) -> str:
    """The best layouts, the fastest first; ``parts`` are those of the experts' exchange."""
    columns = {
        "stage": lambda layout: layout.config.parallel.stage,
        "virtual": lambda layout: layout.config.parallel.virtual_stages,
        "expert": lambda layout: layout.config.parallel.expert,
        "parts": lambda layout: layout.config.parallel.expert_chunks,
        "data": lambda layout: layout.config.parallel.data,
        "micro-batches": lambda layout: layout.config.train.micro_batches,
        "remat": lambda layout: layout.recomputation,
        "HBM GB": lambda layout: layout.estimate.hbm.total / 1e9,
        "host GB": lambda layout: layout.estimate.host_bytes / 1e9,
        "bubble": lambda layout: percent(layout.estimate.bubble),
        "s": lambda layout: layout.estimate.roofline.seconds,
        "exposed s": lambda layout: layout.estimate.roofline.exposed,
        "MFU": lambda layout: percent(layout.estimate.roofline.mfu()),
    }
    table = column_table(columns, candidates[:limit])
    return f"{len(candidates)} layouts fit by formulas, nothing compiled\n{table}".rstrip()


def mesh_text(mesh: dict[str, int]) -> str:
    """Axes and sizes: ``data 2 x expert 4``."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items())


def hbm_table(hbm: Hbm) -> str:
    """Memory of a device, a line for each part."""
    rows = [(name, significant(size / 1e9), percent(size / hbm.limit)) for name, size in hbm.parts.items()]
    verdict = "fits" if hbm.fits else "does not fit"
    rows.append((f"in all: {verdict}", significant(hbm.total / 1e9), percent(hbm.total / hbm.limit)))
    if hbm.empty:
        rows.append(("of which empty layer slots", significant(hbm.empty / 1e9), percent(hbm.empty / hbm.limit)))
    return text_table(("for", "GB", f"of {hbm.limit / 1e9:.0f} GB"), rows)


def _collective_table(report: ProgramReport) -> str:
    columns = {
        "kind": lambda total: total.kind,
        "axes": lambda total: total.axes,
        "type": lambda total: total.dtype,
        "times": lambda total: total.count,
        "GB": lambda total: total.bytes / 1e9,
        "s": lambda total: total.seconds,
        "exposed s": lambda total: total.exposed,
    }
    return column_table(columns, report.collectives)


def _work_table(report: TrainingReport) -> str:
    model = report.roofline.model_flops / math.prod(report.mesh.values())
    rows = [
        ("model FLOPs", quantity(model), ""),
        ("executed FLOPs of products and kernels", quantity(report.counts.flops), percent(model / report.counts.flops)),
        ("the same in the compiled program", quantity(report.compiled_flops), percent(model / report.compiled_flops)),
        ("HBM bytes of products and kernels", quantity(report.counts.bytes), ""),
    ]
    return text_table(("", "number", "model FLOPs over it"), rows)


def _time_table(time: Roofline, bubble: float) -> str:
    host = [(f"host traffic, at {HOST:.0%} of PCIe", time.host, "")] if time.host else []
    rows = [
        (f"compute, at {COMPUTE:.0%} of peak", time.compute, ""),
        (f"HBM traffic, at {MEMORY:.0%} of bandwidth", time.memory, ""),
        *host,
        (f"the longest of these, tick by tick; of it the bubble is {percent(bubble)}", time.ticks, ""),
        ("all collectives", time.network, ""),
        ("of these, not hidden behind compute", time.exposed, ""),
        ("optimizer and Newton-Schulz", time.optimizer, ""),
        ("estimate: ticks + not hidden + optimizer", time.seconds, percent(time.mfu())),
        ("if nothing overlapped", time.no_overlap, percent(time.mfu(time.no_overlap))),
        ("if everything overlapped", time.full_overlap, percent(time.mfu(time.full_overlap))),
    ]
    return text_table(("", "s", "MFU"), [(name, significant(seconds), mfu) for name, seconds, mfu in rows])


def tower_table(report: TrainingReport, tower: TowerShare) -> str:
    """Memory and time of the tower, and memory without decoupling."""
    total, seconds = report.hbm.total, report.roofline.seconds
    rows = [(name, significant(size / 1e9), percent(size / total)) for name, size in tower.memory.items()]
    kept, share = significant((total + tower.kept) / 1e9), percent(tower.kept / total)
    work = tower.flops / report.counts.flops
    lines = [
        text_table(("GB of a device", "GB", "of the step's"), rows),
        f"Decoupled, a step takes {significant(total / 1e9)} GB. With the residuals of a device's {tower.rows} rows of "
        f"{tower.length:,} patches kept while the decoder runs, {share} more: {kept} of "
        f"{significant(report.hbm.limit / 1e9)} GB.",
        f"Forward, forward again and backward take {significant(tower.seconds)} s of the estimate, "
        f"{percent(tower.seconds / seconds)}, and {percent(work)} of the executed FLOPs, rows of padding included.",
    ]
    return "\n".join(lines)


def _published_table(published: list[PublishedRun]) -> str:
    columns = {
        "run on 256 tpu7x chips": lambda run: run.name,
        "ticks s": lambda run: run.estimate.roofline.ticks,
        "exposed s": lambda run: run.estimate.roofline.exposed,
        "optimizer s": lambda run: run.estimate.roofline.optimizer,
        "MFU, estimated": lambda run: percent(run.estimate.roofline.mfu()),
        "published": lambda run: percent(run.mfu),
        "ratio": lambda run: run.ratio,
    }
    return column_table(columns, published)


def as_json(value: Any) -> Any:
    """Records as objects, with their computed properties beside their fields, for ``json.dumps``."""
    if isinstance(value, Roofline):
        return {**vars(value), "seconds": value.seconds, "no_overlap": value.no_overlap} | {
            "full_overlap": value.full_overlap,
            "mfu": value.mfu(),
        }
    if isinstance(value, Hbm):
        listed = {"parts": value.parts, "limit": value.limit, "total": value.total, "fits": value.fits}
        return listed | ({"empty_layer_slots": value.empty} if value.empty else {})
    if isinstance(value, Candidate):
        return {"flags": value.flags, **as_json(value.estimate)}
    if hasattr(value, "_asdict") or dataclasses.is_dataclass(value):
        values = value._asdict() if hasattr(value, "_asdict") else vars(value)
        return {key: as_json(item) for key, item in values.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value
