"""The phases of an iteration as a text table and as JSON."""

from __future__ import annotations

from typing import Any

from k2jax.aot.cost.roofline import LINK
from k2jax.aot.report.tables import as_json, column_table, hbm_table, mesh_text
from k2jax.aot.weight_sync import PhasesReport, SwitchReport
from k2jax.report.table import duration, significant, text_table

LISTED = 8  # kinds of buckets


def phases_table(report: PhasesReport) -> str:
    """Memory of a device in every phase, and the time of the switch."""
    switch = report.switch
    training, engine = mesh_text(switch.training), mesh_text(switch.engine)
    lines = [
        f"{switch.topology}: training on {training}, engines on {engine}; weight sync compiled in "
        f"{duration(switch.compile_seconds)}",
        *(f"HBM of a device: {name}\n{hbm_table(hbm)}" for name, hbm in report.memory().items()),
        f"Engines, which take turns; tokens a second are those of an engine that works alone\n{_engine_table(report)}",
        f"Programs of the weight sync, on a device, collectives at {LINK:.0%} of their links\n{_bucket_table(switch)}",
        f"The switch, an estimate: nothing was run\n{_switch_table(switch)}",
        f"{_broadcast_title(switch)}\n{_broadcast_table(switch)}",
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def phases_json(report: PhasesReport) -> dict[str, Any]:
    """All figures, for ``json.dumps``."""
    switch = report.switch
    return {**as_json(report), "push_seconds": switch.push_seconds, "switch_seconds": switch.seconds}


def _engine_table(report: PhasesReport) -> str:
    columns = {
        "role": lambda item: item[0],
        "sequences": lambda item: f"{item[1].decode.slots:,}",
        "of tokens": lambda item: f"{item[1].decode.context:,}",
        "weights GB": lambda item: item[1].decode.hbm.parts["weights"] / 1e9,
        "cache GB": lambda item: item[1].decode.hbm.parts["cache"] / 1e9,
        "decode tokens/s": lambda item: item[1].decode.tokens / item[1].decode.roofline.seconds,
        "prefill tokens/s": lambda item: item[1].prefill.tokens / item[1].prefill.roofline.seconds,
    }
    return column_table(columns, report.engines.items())


def _bucket_table(switch: SwitchReport) -> str:
    columns = {
        "weight": lambda bucket: bucket.weights[0] + _others(len(bucket.weights) - 1),
        "runs": lambda bucket: bucket.runs,
        "MB": lambda bucket: bucket.bucket / 1e6,
        "temporary MB": lambda bucket: bucket.temporaries / 1e6,
        "wire MB": lambda bucket: bucket.wire / 1e6,
        "ms": lambda bucket: 1e3 * bucket.seconds,
        "collectives": lambda bucket: ", ".join(f"{count} {kind}" for kind, count in bucket.kinds.items()) or "none",
    }
    return column_table(columns, switch.buckets[:LISTED])


def _others(count: int) -> str:
    return f" and {count} more" if count else ""


def _broadcast_title(switch: SwitchReport) -> str:
    report = switch.broadcast
    return (
        f"Weights to engines on {report.hosts} other hosts from {report.hosts} of the trainer, "
        f"{significant(report.host_network / 1e9)} GB/s a host each way, an estimate: nothing was run"
    )


def _broadcast_table(switch: SwitchReport) -> str:
    columns = {
        "each host receives": lambda way: way.what,
        "GB": lambda way: way.received / 1e9,
        "a trainer's sends GB": lambda way: way.sent / 1e9,
        "to host s": lambda way: way.to_host,
        "network s": lambda way: way.network,
        "to device s": lambda way: way.to_device,
        "chain of": lambda way: way.chain,
        "its latency s": lambda way: way.latency,
        "pipelined s": lambda way: way.seconds,
        "one after the other s": lambda way: way.apart,
    }
    return column_table(columns, switch.broadcast.ways)


def _switch_table(switch: SwitchReport) -> str:
    wire = sum(bucket.runs * bucket.wire for bucket in switch.buckets)
    rows = [
        ("weights, each counted once", f"{significant(switch.pushed / 1e9)} GB", ""),
        ("arrays of collectives, a device", f"{significant(wire / 1e9)} GB", f"{significant(switch.push_seconds)} s"),
        ("training state to the host, a device", f"{significant(switch.state / 1e9)} GB", ""),
        ("roles' weights from the host, a device", f"{significant(switch.frozen / 1e9)} GB", ""),
        ("both ways, one after the other", "", f"{significant(switch.host_seconds)} s"),
        ("from training to the rollout", "", f"{significant(switch.seconds)} s"),
        ("from the rollout to training: the way back", "", f"{significant(switch.host_seconds)} s"),
    ]  # fmt: skip
    return text_table(("", "bytes", "time"), rows)
