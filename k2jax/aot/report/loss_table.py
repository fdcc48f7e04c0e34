"""What lost hosts cost a run, as a text table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any

from k2jax.aot.cost.host_loss import Constant, HostLoss, RunShape, host_losses
from k2jax.aot.report.tables import as_json, column_table
from k2jax.report.table import duration, percent, significant, text_table

INTERVALS = (5, 10, 20, 50, 100, 200)


def loss_table(topology: str, shape: RunShape, constants: Mapping[str, Constant]) -> str:
    """Every kind of loss, other intervals between checkpoints, and every constant."""
    total, step = shape.trainer_hosts * shape.state_bytes, duration(shape.training_seconds)
    lines = [
        f"{topology}: {shape.trainer_hosts} hosts train; {significant(total / 1e9)} GB of parameters and optimizer "
        f"state, {significant(shape.state_bytes / 1e9)} GB a host; a step of {step}{_rollouts(shape)}, a checkpoint "
        f"every {shape.interval}",
        f"What the loss of one host costs, an estimate: nothing was run\n{_losses(host_losses(shape, constants))}",
        f"The trainer's loss by the interval between checkpoints, without what saving costs\n"
        f"{_intervals(shape, constants)}",
        f"Constants, each replaced by --assume=NAME=VALUE\n{_constants(constants)}",
    ]
    return "\n\n".join(line.rstrip() for line in lines)


def loss_json(topology: str, shape: RunShape, constants: Mapping[str, Constant]) -> dict[str, Any]:
    """All figures, for ``json.dumps``."""
    losses = [{**as_json(loss), "seconds": loss.seconds, "share": loss.share} for loss in host_losses(shape, constants)]
    return {
        "topology": topology,
        "run": as_json(shape),
        "losses": losses,
        "constants": {name: constant._asdict() for name, constant in constants.items()},
    }


def _rollouts(shape: RunShape) -> str:
    return f" after {duration(shape.rollout_seconds)} of rollouts" if shape.rollout_seconds else ""


def _losses(losses: list[HostLoss]) -> str:
    columns = {
        "lost": lambda loss: loss.what,
        "stands still": lambda loss: loss.stops,
        "noticed": lambda loss: duration(loss.detection),
        "restarted": lambda loss: duration(loss.restart),
        "restored": lambda loss: duration(loss.restore),
        "done twice": lambda loss: duration(loss.repeated),
        "in all": lambda loss: duration(loss.seconds),
        "hosts": lambda loss: loss.hosts,
        "losses a day": lambda loss: loss.per_day,
        "of its time": lambda loss: percent(loss.share),
    }
    return column_table(columns, losses)


def _intervals(shape: RunShape, constants: Mapping[str, Constant]) -> str:
    rows = []
    for interval in sorted({*INTERVALS, shape.interval}):
        loss = host_losses(dataclasses.replace(shape, interval=interval), constants)[0]
        rows.append((interval, duration(loss.repeated), duration(loss.seconds), percent(loss.share)))
    return text_table(("checkpoint.every", "done twice", "in all", "of its time"), rows)


def _constants(constants: Mapping[str, Constant]) -> str:
    rows = [(name, f"{each.value:g}", each.unit, each.meaning, each.source) for name, each in constants.items()]
    return text_table(("name", "value", "", "meaning", "source"), rows)
