"""``metrics.jsonl``: one JSON object per line, in step order, each step once, even if the run was killed and resumed.

A run writes the following keys if it has their values; other keys are kept unchanged:

| key | meaning |
| --- | --- |
| `step` | optimizer steps done |
| `phase` | name of the phase, of a run with phases |
| `loss`, `val_loss` | cross-entropy [nats per token] |
| `val_loss/NAME` | the same of a source's held-out data, with `eval.by_source` |
| `val_bits_per_byte` | held-out cross-entropy [bits per byte of text], where no source has images |
| `learning_rate` | peak group's rate at this step |
| `grad_norm` | global gradient norm before clipping |
| `update_norm` | global norm of what the step added to the weights |
| `tokens_per_second` | throughput of this step or logging interval [tokens/s] |
| `mfu` | model FLOPs utilisation, a fraction of the device's peak |
| `max_logit` | largest attention logit of the step, over all layers and heads |
| `max_logit_heads` | the same for each layer and head: a list over layers of lists over heads |
| `vision_max_logit`, `vision_max_logit_heads` | the same two of the tower |
| `clipped_heads`, `vision_clipped_heads` | heads of the decoder, and of the tower, that QK-Clip rescaled |
| `max_violation` | largest (load of the busiest expert) / (mean load) - 1 over the MoE layers |
| `max_violation_layers` | the same for each MoE layer |
| `expert_tokens` | tokens routed to each expert: a list over MoE layers of lists over experts |
| `balance_loss` | sequence-level balance loss |
| `dropped_rows` | tokens dropped because a device's experts had no free slot, over all MoE layers |
| `dropped_rows_layers` | the same for each MoE layer |
| `spikes` | loss spikes since step 0, in pretraining and fine-tuning |
| `memory_gb` | peak memory of the device, or of the process on CPU [GB] |
| `seconds` | training time since step 0, earlier runs included [s] |
| `tokens` | training tokens since step 0, padding excluded [tokens] |
| `loss/TERM` | terms of a loss that has several, each over its own denominator |
| `TERM/NAME` | what the loss reports beside a term, over the same denominator |
| `crc32` | checksum of the line without this key: CRC-32 of its JSON text |
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import math
from pathlib import Path
import sys
from typing import Any, BinaryIO
import zlib

from k2jax.errors import UserError
from k2jax.files.append_log import AppendLog, Lines, read_log
from k2jax.files.atomic import write_atomic
from k2jax.report.scalar_writers import ScalarWriter, TensorBoard, Wandb, WandbProject

FILE = "metrics.jsonl"
DAMAGED = "metrics.damaged.jsonl"
RESERVED = ("step", "non_finite", "crc32")


class MetricsLog:
    """Writes a workdir's ``metrics.jsonl`` and, on request, its scalars to other places.

    Args:
        workdir: folder of the run; created if missing.
        resume_step: the restored step, 0 for a new run. Lines of later steps, which the run will write again, and an
            incomplete last line are removed atomically. Damaged lines move to ``metrics.damaged.jsonl``.
        tensorboard: whether finite scalars are also written to ``tensorboard/``; events of later steps are purged.
        wandb: the project of Weights & Biases that also gets them; None for none.

    Attributes:
        damaged: how many lines were found damaged.
        places: addresses and folders outside of the workdir's own files that get the scalars too, in words.

    Raises:
        UserError: Weights & Biases cannot be written to.
    """

    def __init__(self, workdir: Path | str, *, resume_step: int, tensorboard: bool, wandb: WandbProject | None = None):
        self._path = Path(workdir) / FILE
        records, damaged, whole = _read(self._path)
        kept = [record for record in records if record["step"] <= resume_step]
        self.damaged = len(damaged)
        if damaged:  # set aside first: what is lost from one file is in the other
            write_atomic(self._path.with_name(DAMAGED), b"".join(line + b"\n" for _, line in damaged))
        if not whole or len(kept) < len(records):
            self._replace(kept)
        self._last = kept[-1]["step"] if kept else None
        self._inherited = self._last if self._last == resume_step else None  # the only line that may be replaced
        self._log = AppendLog(self._path, Lines())  # what is in the lines has been checked
        self._log.open()
        self._writers: list[ScalarWriter] = []
        self.places: list[str] = []
        if tensorboard:
            self._writers.append(TensorBoard(Path(workdir) / "tensorboard", resume_step))
        if wandb is not None:
            run = Wandb(Path(workdir), wandb)
            self._writers.append(run)
            self.places.append(f"Weights & Biases: {run.place}")

    @property
    def last_step(self) -> int:
        """The newest step of which there is a line; 0 for none."""
        return self._last or 0

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the line of ``step``, and passes it to the operating system before returning.

        Only the line of the step from which the run resumed may be written again; it replaces the old line.

        Args:
            step: optimizer steps done.
            values: numbers, strings, arrays (objects with ``tolist``) and nested lists; None is left out. NaN and
                infinities become null, with their position and value under ``non_finite``.

        Raises:
            ValueError: the step does not follow the last one, or a key is reserved.
        """
        step = int(step)
        again = step == self._inherited
        if self._last is not None and step <= self._last and not again:
            raise ValueError(f"metrics of step {step} after step {self._last}: steps must increase")
        record = to_record(step, values)
        if again:
            self._rewrite_last(record)
        else:
            self._log.append(_line(record))
        self._last, self._inherited = step, None
        scalars = {key: value for key, value in record.items() if key != "step" and isinstance(value, (int, float))}
        for writer in self._writers:
            writer.add(step, scalars)

    def close(self) -> None:
        """Closes the file and the other places; further calls do nothing."""
        self._log.close()
        while self._writers:
            self._writers.pop().close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _rewrite_last(self, record: dict[str, Any]) -> None:
        self._log.close()
        self._replace([*_read(self._path)[0][:-1], record])  # atomic: the file has the old line or the new line
        self._log = AppendLog(self._path, Lines())

    def _replace(self, records: list[dict[str, Any]]) -> None:
        write_atomic(self._path, b"".join(map(_line, records)))


def read_metrics(workdir: Path | str, most_lists: int | None = None) -> list[dict[str, Any]]:
    """Returns the records of a workdir in step order, without an incomplete last line; [] if there is no file.

    Args:
        workdir: folder of the run.
        most_lists: in how many records at most values that are lists are kept: evenly spaced ones, the last among them.
            The loads of experts take most of the memory of a long run's records; None keeps all of them.

    Raises:
        UserError: a line is damaged.
    """
    path = Path(workdir) / FILE
    records, damaged, _ = _read(path, most_lists)
    if damaged:
        raise UserError(
            f"{path}: line {damaged[0][0]} is damaged; remove it, or start the run again, which sets it aside"
        )
    return records


def to_record(step: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object of one line: plain Python values without NaN and infinity (see MetricsLog.write)."""
    record: dict[str, Any] = {"step": step}
    non_finite: dict[str, str] = {}
    for key, value in values.items():
        if key in RESERVED:
            raise ValueError(f"the metrics key {key!r} is reserved")
        if value is not None:
            record[key] = _plain(value, key, non_finite)
    if non_finite:
        record["non_finite"] = non_finite
    return record


def _plain(value: Any, position: str, non_finite: dict[str, str]) -> Any:
    if hasattr(value, "tolist"):  # NumPy and JAX scalars and arrays, without importing either
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{position}[{index}]", non_finite) for index, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    value = float(value)  # raises TypeError for a value that is no metric
    if math.isfinite(value):
        return value
    non_finite[position] = str(value)
    return None


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, allow_nan=False)
    return json.dumps(record | {"crc32": zlib.crc32(text.encode())}, allow_nan=False).encode() + b"\n"


def _read(path: Path, most_lists: int | None = None) -> tuple[list[dict[str, Any]], list[tuple[int, bytes]], bool]:
    """The records of a file by ascending step, its damaged lines by number, and whether it is nothing but records.

    A last line that does not end is no damage: the run was killed while it wrote it.
    """
    if not path.exists():
        return [], [], True
    with open(path, "rb") as file:
        lines = sum(1 for _ in file)
    stride = -(-lines // most_lists) if most_lists else 1
    records: dict[int, dict[str, Any]] = {}
    damaged, torn, last, ascending, is_ended = [], [], -1, True, True
    for number, (line, record) in enumerate(read_log(path, _RecordLines(), torn.append), 1):  # one in memory at a time
        if record is None:
            damaged.append((number, line[:-1]))
            continue
        ascending = ascending and record["step"] > last
        last, is_ended = record["step"], line.endswith(b"\n")
        keeps_lists = (lines - number) % stride == 0
        # The later line counts if two runs wrote the same step. Names are those of the other records, not copies.
        records[last] = {sys.intern(k): v for k, v in record.items() if keeps_lists or not isinstance(v, list)}
    whole = ascending and is_ended and not torn and not damaged
    return [records[step] for step in sorted(records)], damaged, whole


class _RecordLines(Lines):
    """Lines with what they hold: a record, or None for what no run wrote, which a run sets aside."""

    def decode(self, file: BinaryIO, index: int) -> tuple[bytes, dict[str, Any] | None] | None:
        line = file.readline()
        record = _parse(line)
        return None if record is None and not line.endswith(b"\n") else (line, record)


def _parse(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for what no run wrote. Lines of older versions have no checksum."""
    try:
        record = json.loads(line)
    except ValueError:  # invalid JSON or UTF-8
        return None
    if not (isinstance(record, dict) and type(record.get("step")) is int):
        return None
    checksum = record.pop("crc32", None)
    text = json.dumps(record).encode()
    return record if checksum in (None, zlib.crc32(text)) else None
