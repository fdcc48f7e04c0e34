"""The facts about a run that its report contains: from the command, completed from the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from k2jax.report.series import Records, scalars


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Results of simple compressors on the held-out text on which the model is evaluated [bits per byte]."""

    unigram_entropy: float | None = None  #: entropy of the byte frequencies
    gzip: float | None = None  #: gzip -9
    xz: float | None = None  #: xz

    def items(self) -> list[tuple[str, float]]:
        """Returns (name, bits per byte) of each known baseline."""
        named = [("unigram byte entropy", self.unigram_entropy), ("gzip -9", self.gzip), ("xz", self.xz)]
        return [(name, value) for name, value in named if value is not None]


NO_BASELINES = Baselines()


@dataclasses.dataclass(frozen=True)
class DataSource:
    """Use of one corpus by a run."""

    name: str
    tokens: int | None = None  #: tokens in the corpus
    epochs: float | None = None  #: passes over the corpus
    skipped: int | None = None  #: corrupt records skipped

    @property
    def tokens_seen(self) -> int | None:
        """Tokens of the corpus that the run was trained on, those of every pass; exact after whole passes."""
        return None if self.tokens is None or self.epochs is None else round(self.tokens * self.epochs)


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """Everything that a report can contain; None means unknown, and is not printed.

    Fields from ``step`` on that are None are computed from ``metrics.jsonl``.
    """

    title: str  #: name of the run
    _: dataclasses.KW_ONLY
    stage: str | None = None  #: pretrain | sft | rl
    status: str | None = None  #: how it ended, e.g. "finished", "stopped by SIGTERM"
    command: str | None = None  #: the command that continues the run
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: configuration highlights by key
    changes: Sequence[tuple[str, str, str, str]] = ()  #: last step with the old value, key, old and new value
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: package versions
    device: str | None = None  #: e.g. "8 x TPU v5p", "CPU, 2 cores"
    peak_flops: float | None = None  #: of all devices, of which ``mfu`` is a fraction [FLOP/s]
    peak_is_measured: bool = False  #: by a matrix product, rather than from the data sheet
    parameters_total: int | None = None  #: all parameters
    parameters_active: int | None = None  #: parameters used per token
    total_steps: int | None = None  #: steps the configuration asks for
    held_out: str | None = None  #: the validation text, or tasks, in words, e.g. "2 % of the documents, 251 kB"
    best_step: int | None = None  #: step of the lowest held-out loss, where the run marks it
    baselines: Baselines = NO_BASELINES  #: on the same held-out text
    sources: Sequence[DataSource] = ()  #: training data
    phases: Sequence[Sequence[str]] = ()  #: header and rows of the table of the run's phases
    newton_schulz_share: float | None = None  #: FLOPs of Newton-Schulz over the training FLOPs of its matrices
    qk_clip_tau: float | None = None  #: threshold of QK-Clip
    step: int | None = None  #: optimizer steps done
    loss: float | None = None  #: training loss at the last step [nats per token]
    mean_loss: float | None = None  #: its mean over the last ``mean_loss_records`` records [nats per token]
    mean_loss_records: int | None = None  #: a tenth of the records, at most 20
    val_loss: float | None = None  #: last validation loss [nats per token]
    val_bits_per_byte: float | None = None  #: last validation
    tokens: int | None = None  #: training tokens seen
    seconds: float | None = None  #: training time, earlier runs included [s]
    tokens_per_second: float | None = None  #: median
    mfu: float | None = None  #: median fraction of peak FLOP/s
    memory_gb: float | None = None  #: peak [GB]
    max_logit: float | None = None  #: highest attention logit of the run
    max_logit_step: int | None = None  #: step of that logit
    clipped_heads: int | None = None  #: rescalings of a head by QK-Clip, over all logged steps
    clipped_steps: int | None = None  #: logged steps in which a head was clipped
    max_violation_first: float | None = None  #: mean of the first tenth of the records, at most 20
    max_violation_last: float | None = None  #: mean of the last tenth of the records, at most 20
    spikes: int | None = None  #: loss spikes
    reward_first: float | None = None  #: mean of the first tenth of the records, at most 20
    reward_last: float | None = None  #: mean of the last tenth of the records, at most 20
    held_out_shares: Sequence[tuple[str, str, str]] = ()  #: name, first and last value of each share on held-out tasks


def complete(summary: RunSummary, records: Records) -> RunSummary:
    """Returns ``summary`` with fields that are None computed from the metrics, where possible."""
    derived = {key: value for key, value in _from_metrics(records).items() if getattr(summary, key) is None}
    return dataclasses.replace(summary, **derived)


def _from_metrics(records: Records) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if records:
        fields["step"] = records[-1]["step"]
    for key in ("val_loss", "val_bits_per_byte", "tokens", "seconds", "spikes"):
        _put(fields, key, records, key, lambda values: values[-1])
    for key in ("tokens_per_second", "mfu"):  # the median ignores steps that compiled or validated
        _put(fields, key, records, key, np.median)
    _put(fields, "loss", records, "loss", lambda values: values[-1])
    _put(fields, "mean_loss", records, "loss", lambda values: values[-_window(values) :].mean())
    _put(fields, "mean_loss_records", records, "loss", _window)
    _put(fields, "memory_gb", records, "memory_gb", np.max)
    _put(fields, "max_logit", records, "max_logit", np.max)
    _put(fields, "clipped_heads", records, "clipped_heads", np.sum)
    _put(fields, "clipped_steps", records, "clipped_heads", np.count_nonzero)
    for key in ("max_violation", "reward"):
        _put(fields, f"{key}_first", records, key, lambda values: values[: _window(values)].mean())
        _put(fields, f"{key}_last", records, key, lambda values: values[-_window(values) :].mean())
    logits = scalars(records, "max_logit")
    if logits is not None:
        fields["max_logit_step"] = int(logits[0][np.nanargmax(logits[1])])
    for key in ("tokens", "spikes", "clipped_heads", "clipped_steps", "mean_loss_records"):
        if key in fields:
            fields[key] = int(fields[key])
    return fields


def _put(fields: dict[str, Any], field: str, records: Records, key: str, reduce) -> None:
    pairs = scalars(records, key)
    if pairs is not None:
        _, values = pairs
        fields[field] = float(reduce(values[np.isfinite(values)]))


def _window(values: np.ndarray) -> int:
    return max(1, min(20, len(values) // 10))
