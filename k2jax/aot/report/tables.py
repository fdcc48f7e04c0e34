"""Compiled programs and estimates as text tables and as JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from k2jax.aot.cost.estimate import Estimate
from k2jax.aot.cost.hbm import Hbm
from k2jax.aot.cost.published import PublishedRun
from k2jax.aot.cost.roofline import COMPUTE, HOST, LINK, MEMORY, Roofline
from k2jax.aot.cost.sweep import Candidate
from k2jax.aot.cost.tower_cost import TowerShare
from k2jax.aot.kernels import CompiledKernel
from k2jax.aot.serving import ServingReport
from k2jax.aot.training import TrainingReport
from k2jax.report.table import duration, percent, quantity, significant, text_table


def kernel_table(kernels: list[CompiledKernel]) -> str:
    """A block for each kernel, direction and shape, a line for each topology."""
    header = (
        "topology",
        "VMEM MiB",
        "of",
        "HBM temp MB",
        "in all",
        "GFLOP",
        "MB",
        "roofline ms",
        "bound",
        "compiled in s",
    )
    blocks: dict[str, list] = {}
    for kernel in kernels:
        blocks.setdefault(f"{kernel.kernel}, {kernel.direction}: {kernel.shape}", []).append(
            (
                kernel.topology,
                significant(kernel.vmem_bytes / 2**20),
                kernel.vmem_limit_bytes >> 20,
                significant(kernel.temp_bytes / 1e6),
                significant(kernel.hbm_bytes / 1e6),
                significant(kernel.flops / 1e9),
                significant(kernel.bytes / 1e6),
                significant(1e3 * kernel.roofline_seconds),
                kernel.bound,
                significant(kernel.compile_seconds),
            )
        )
    return "\n\n".join(f"{title}\n{text_table(header, rows)}" for title, rows in blocks.items())


def training_table(report: TrainingReport, published: list[PublishedRun]) -> str:
    """A compiled step: memory, collectives, work, time, and the same arithmetic for published runs."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in report.mesh.items())
    lines = [
        f"{report.topology}, {mesh}: {quantity(report.tokens)} tokens a step, "
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
    mesh, time = " x ".join(f"{axis} {size}" for axis, size in report.mesh.items()), report.roofline
    devices = math.prod(report.mesh.values())
    rows = [
        (f"{quantity(report.work.flops)} FLOPs, at {COMPUTE:.0%} of peak", significant(1e3 * time.compute)),
        (f"{quantity(report.work.bytes)} bytes of HBM, at {MEMORY:.0%} of bandwidth", significant(1e3 * time.memory)),
        (f"collectives, at {LINK:.0%} of their links, without latency", significant(1e3 * time.network)),
        ("of these, not hidden behind compute", significant(1e3 * time.exposed)),
        ("estimate: the longer of the first two + not hidden", significant(1e3 * time.seconds)),
    ]
    rate = report.tokens / time.seconds
    lines = [
        f"{report.mode} on {report.topology}, {mesh}: {report.slots:,} sequences of {report.context:,} tokens, "
        f"{report.tokens:,} new tokens a step, compiled in {duration(report.compile_seconds)}",
        f"HBM of a device\n{hbm_table(report.hbm)}",
        f"Collectives of a device, in a step, at {LINK:.0%} of their links\n{_collective_table(report)}",
        f"Time of a step, an estimate: nothing was run\n{text_table(('', 'ms'), rows)}",
        f"{quantity(rate)} tokens/s, {significant(rate / devices)} a device",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def sweep_table(candidates: list[Candidate], most: int) -> str:
    """The best layouts, the fastest first; ``parts`` are those of the experts' exchange."""
    header = (
        "stage",
        "virtual",
        "expert",
        "parts",
        "data",
        "micro-batches",
        "remat",
        "HBM GB",
        "host GB",
        "bubble",
        "s",
        "exposed s",
        "MFU",
    )
    rows = []
    for candidate in candidates[:most]:
        parallel, train = candidate.config.parallel, candidate.config.train
        line = (
            parallel.stage,
            parallel.virtual_stages,
            parallel.expert,
            parallel.expert_chunks,
            parallel.data,
            train.micro_batches,
            candidate.recomputation,
        )
        rows.append((*line, *_estimate_cells(candidate.estimate)))
    return f"{len(candidates)} layouts fit by formulas, nothing compiled\n{text_table(header, rows)}".rstrip()


def _estimate_cells(estimate: Estimate) -> tuple[str, ...]:
    time = estimate.roofline
    return (
        significant(estimate.hbm.total / 1e9),
        significant(estimate.host_bytes / 1e9),
        percent(estimate.bubble),
        significant(time.seconds),
        significant(time.exposed),
        percent(time.mfu()),
    )


def hbm_table(hbm: Hbm) -> str:
    """Memory of a device, a line for each part."""
    rows = [(name, significant(size / 1e9), percent(size / hbm.limit)) for name, size in hbm.parts.items()]
    verdict = "fits" if hbm.fits else "does not fit"
    rows.append((f"in all: {verdict}", significant(hbm.total / 1e9), percent(hbm.total / hbm.limit)))
    if hbm.empty:
        rows.append(("of which empty layer slots", significant(hbm.empty / 1e9), percent(hbm.empty / hbm.limit)))
    return text_table(("for", "GB", f"of {hbm.limit / 1e9:.0f} GB"), rows)


def _collective_table(report: TrainingReport | ServingReport) -> str:
    rows = [
        (
            row.kind,
            row.axes,
            row.dtype,
            significant(row.count),
            significant(row.bytes / 1e9),
            significant(row.seconds),
            significant(row.exposed),
        )
        for row in report.collectives
    ]
    return text_table(("kind", "axes", "type", "times", "GB", "s", "exposed s"), rows)


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
    rows = [
        (
            run.name,
            *(significant(seconds) for seconds in _terms(run.estimate.roofline)),
            percent(run.estimate.roofline.mfu()),
            percent(run.mfu),
            significant(run.ratio),
        )
        for run in published
    ]
    header = ("run on 256 tpu7x chips", "ticks s", "exposed s", "optimizer s", "MFU, estimated", "published", "ratio")
    return text_table(header, rows)


def _terms(time: Roofline) -> tuple[float, float, float]:
    return time.ticks, time.exposed, time.optimizer


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
    return value
