"""What was compiled and estimated, as tables for people and as JSON."""

from __future__ import annotations

import math
from typing import Any

from k2jax.analysis.hbm import Hbm
from k2jax.analysis.layouts import Estimate
from k2jax.analysis.published import Published
from k2jax.analysis.roofline import COMPUTE, LINK, MEMORY, Roofline
from k2jax.analysis.serving import Serving
from k2jax.analysis.sweep import Candidate
from k2jax.analysis.training import Training
from k2jax.report.table import duration, percent, quantity, significant, text_table


def kernel_table(found: list) -> str:
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
    for one in found:
        blocks.setdefault(f"{one.kernel}, {one.direction}: {one.shape}", []).append(
            (
                one.topology,
                significant(one.vmem_bytes / 2**20),
                one.vmem_limit_bytes >> 20,
                significant(one.temp_bytes / 1e6),
                significant(one.hbm_bytes / 1e6),
                significant(one.flops / 1e9),
                significant(one.bytes / 1e6),
                significant(1e3 * one.roofline_seconds),
                one.bound,
                significant(one.compile_seconds),
            )
        )
    return "\n\n".join(f"{title}\n{text_table(header, rows)}" for title, rows in blocks.items())


def training_table(found: Training, published: list[Published]) -> str:
    """All of a compiled step: memory, collectives, work, time, and how far the tool is off on published runs."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    lines = [
        f"{found.topology}, {mesh}: {quantity(found.tokens)} tokens a step, "
        f"compiled in {duration(found.compile_seconds)}",
        f"HBM of a device\n{hbm_table(found.hbm)}",
        f"Collectives of a device, in a step, at {LINK:.0%} of their links\n{_collective_table(found)}",
        f"Work of a device, in a step\n{_work_table(found)}",
        f"Time of a step, an estimate: nothing was run\n{_time_table(found.roofline, found.bubble)}",
        f"The same arithmetic on published runs\n{_published_table(published)}",
        *(f"note: {note}" for note in found.notes),
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def serving_table(found: Serving) -> str:
    """All of a compiled program of the engine: memory, collectives, and a step's time."""
    mesh, time = " x ".join(f"{axis} {size}" for axis, size in found.mesh.items()), found.roofline
    devices = math.prod(found.mesh.values())
    rows = [
        (f"{quantity(found.work.flops)} FLOPs, at {COMPUTE:.0%} of peak", significant(1e3 * time.compute)),
        (f"{quantity(found.work.bytes)} bytes of HBM, at {MEMORY:.0%} of bandwidth", significant(1e3 * time.memory)),
        (f"collectives, at {LINK:.0%} of their links, without latency", significant(1e3 * time.network)),
        ("of these, not hidden behind compute", significant(1e3 * time.exposed)),
        ("estimate: the longer of the first two + not hidden", significant(1e3 * time.seconds)),
    ]
    rate = found.tokens / time.seconds
    lines = [
        f"{found.mode} on {found.topology}, {mesh}: {found.slots:,} sequences of {found.context:,} tokens, "
        f"{found.tokens:,} new tokens a step, compiled in {duration(found.compile_seconds)}",
        f"HBM of a device\n{hbm_table(found.hbm)}",
        f"Collectives of a device, in a step, at {LINK:.0%} of their links\n{_collective_table(found)}",
        f"Time of a step, an estimate: nothing was run\n{text_table(('', 'ms'), rows)}",
        f"{quantity(rate)} tokens/s, {significant(rate / devices)} a device",
        *(f"note: {note}" for note in found.notes),
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def sweep_table(found: list[Candidate], most: int) -> str:
    """The best layouts, the fastest first."""
    header = (
        "stage",
        "virtual",
        "expert",
        "data",
        "micro-batches",
        "remat",
        "HBM GB",
        "bubble",
        "s",
        "exposed s",
        "MFU",
    )
    rows = []
    for one in found[:most]:
        parallel, train, estimate = one.config.parallel, one.config.train, one.estimate
        line = (
            parallel.stage,
            parallel.virtual_stages,
            parallel.expert,
            parallel.data,
            train.micro_batches,
            train.remat,
        )
        rows.append((*line, *_estimate_cells(estimate)))
    return f"{len(found)} layouts fit by formulas, nothing compiled\n{text_table(header, rows)}".rstrip()


def _estimate_cells(estimate: Estimate) -> tuple[str, ...]:
    time = estimate.roofline
    return (
        significant(estimate.hbm.total / 1e9),
        percent(estimate.bubble),
        significant(time.seconds),
        significant(time.exposed),
        percent(time.mfu()),
    )


def hbm_table(hbm: Hbm) -> str:
    """What a device holds, a line for each part."""
    rows = [(name, significant(size / 1e9), percent(size / hbm.limit)) for name, size in hbm.parts.items()]
    verdict = "fits" if hbm.fits else "does not fit"
    rows.append((f"in all: {verdict}", significant(hbm.total / 1e9), percent(hbm.total / hbm.limit)))
    if hbm.empty:
        rows.append(("of which empty layer slots", significant(hbm.empty / 1e9), percent(hbm.empty / hbm.limit)))
    return text_table(("for", "GB", f"of {hbm.limit / 1e9:.0f} GB"), rows)


def _collective_table(found: Training | Serving) -> str:
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
        for row in found.collectives
    ]
    return text_table(("kind", "axes", "type", "times", "GB", "s", "exposed s"), rows)


def _work_table(found: Training) -> str:
    devices = 1
    for size in found.mesh.values():
        devices *= size
    model = found.roofline.model_flops / devices
    rows = [
        ("model FLOPs", quantity(model), ""),
        ("executed FLOPs of products and kernels", quantity(found.counts.flops), percent(model / found.counts.flops)),
        ("the same in the compiled program", quantity(found.compiled_flops), percent(model / found.compiled_flops)),
        ("HBM bytes of products and kernels", quantity(found.counts.bytes), ""),
    ]
    return text_table(("", "number", "model FLOPs over it"), rows)


def _time_table(time: Roofline, bubble: float) -> str:
    rows = [
        (f"compute, at {COMPUTE:.0%} of peak", time.compute, ""),
        (f"HBM traffic, at {MEMORY:.0%} of bandwidth", time.memory, ""),
        (f"the longer of both, tick by tick; of it the bubble is {percent(bubble)}", time.ticks, ""),
        ("all collectives", time.network, ""),
        ("of these, not hidden behind compute", time.exposed, ""),
        ("optimizer and Newton-Schulz", time.optimizer, ""),
        ("estimate: ticks + not hidden + optimizer", time.seconds, percent(time.mfu())),
        ("if nothing overlapped", time.no_overlap, percent(time.mfu(time.no_overlap))),
        ("if everything overlapped", time.full_overlap, percent(time.mfu(time.full_overlap))),
    ]
    return text_table(("", "s", "MFU"), [(name, significant(seconds), mfu) for name, seconds, mfu in rows])


def _published_table(published: list[Published]) -> str:
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


def as_json(found: Any) -> Any:
    """NamedTuples as objects, with what they compute beside what they hold, for ``json.dumps``."""
    if isinstance(found, Roofline):
        return {**found._asdict(), "seconds": found.seconds, "no_overlap": found.no_overlap} | {
            "full_overlap": found.full_overlap,
            "mfu": found.mfu(),
        }
    if isinstance(found, Hbm):
        listed = {"parts": found.parts, "limit": found.limit, "total": found.total, "fits": found.fits}
        return listed | ({"empty_layer_slots": found.empty} if found.empty else {})
    if isinstance(found, Candidate):
        return {"flags": found.flags, **as_json(found.estimate)}
    if hasattr(found, "_asdict"):
        return {key: as_json(value) for key, value in found._asdict().items()}
    if isinstance(found, (list, tuple)):
        return [as_json(one) for one in found]
    return found
