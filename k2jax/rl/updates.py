"""The optimizer's updates of an iteration: advantages to rows, rows to gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import time
from typing import Any

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.errors import UserError
from k2jax.losses.quantiles import quantile
from k2jax.rl.failures import PATIENCE
from k2jax.rl.groups import Further, PromptGroup, training_samples
from k2jax.rl.packing.images import image_batches
from k2jax.rl.packing.rows import ImageSource, PackedRows, equalize_domains, in_updates, pack, parts_of
from k2jax.rl.packing.training_paths import TrainingResponse, TrainingSample, replayed_routes
from k2jax.text.media_reading import MediaReader
from k2jax.train.record import logit_metrics, scalar_metrics
from k2jax.train.run import Run
from k2jax.train.step import StepMetrics


class Trainer:
    """Trains on the groups of an iteration in at most ``config.rl.updates`` optimizer steps.

    Updates without signal, in which every advantage is 0 and no method has a gradient of its own, are left out: the
    size of an update of Muon or Adam does not depend on that of the gradient, and it would be a step into a random
    direction.

    Args:
        run: the run.
        has_signal: whether a method gives a gradient where advantages are 0.
        media: reads the images of messages; None for a model of text.
        further: makes samples of a group beside its responses, see ``Method.samples``.
        check: called with the rows of an update before it begins.
    """

    def __init__(
        self,
        run: Run,
        has_signal: bool = False,
        media: MediaReader | None = None,
        further: Further = lambda group, advantages_K: (),
        check: Callable[[Sequence[PackedBatch]], None] = lambda rows: None,
    ):
        self._run, self._config, self._has_signal, self._further = run, run.config, has_signal, further
        self._check, sharding = check, run.program.batch_sharding()
        self._local_rows, self._image_batches = sharding.rows, image_batches(sharding, run.config.model.vision)
        self._images = None if media is None else ImageSource(media, run.config.data.images.patches)
        self._routes = replayed_routes(run.config)
        self._without = 0  # iterations in a row whose responses were all too large

    def pack(self, groups: Sequence[PromptGroup]) -> dict[int, PackedRows]:
        """The rows of the updates of an iteration that may have a signal, by their number.

        A response that fits no row, nor in pieces where the loss allows them, is left out, counted and said; it stays
        in its group's baseline. Several iterations in a row without a response that fits are a UserError.
        """
        rl, self._began = self._config.rl, time.perf_counter()
        self._metrics: list[StepMetrics] = []
        self._packed: dict[int, PackedRows] = {}
        self._trained: list[PackedRows] = []
        self._updated = self._began
        samples, flat = training_samples(rl, groups, self._further)
        self._flat = flat / max(1, len(groups))
        self._too_large: list[TrainingResponse] = []
        if flat < len(groups) or self._has_signal:
            for number, update in enumerate(in_updates(samples, rl.updates)):
                if self._has_signal or any(sample.advantage for sample in update):
                    packed = self._rows(update)
                    self._too_large += packed.too_large
                    if packed.rows and (self._has_signal or any(place.response.advantage for place in packed.places)):
                        self._packed[number] = packed
        self._without = self._without + 1 if self._too_large and not self._packed else 0
        if self._too_large:
            self._check_sizes()
        return self._packed

    def update(self, number: int, rows: Sequence[PackedBatch]) -> StepMetrics:
        """Does update ``number`` with rows ``[S]``.

        Raises:
            NonFiniteError: see ``Run.update``.
        """
        self._check(rows)
        parts = parts_of(rows, self._config.train.batch_size, self._local_rows, self._image_batches)
        self._metrics.append(self._run.update(parts))
        self._trained.append(self._packed[number])
        self._updated = time.perf_counter()
        return self._metrics[-1]

    def record(self) -> dict[str, Any]:
        """Metrics of the updates since ``pack``, see ``_summary``."""
        metrics, seconds = self._metrics, self._updated - self._began
        record = {"flat_groups": self._flat, "updates": len(metrics), "train_seconds": seconds}
        if self._too_large:
            record["responses_too_large"] = len(self._too_large)
        if self._packed:
            record |= _packing(self._trained)
        if metrics:
            record |= self._run.recorder.rates(sum(int(m.tokens) for m in metrics), seconds) | _summary(metrics)
        return record

    def _check_sizes(self) -> None:
        """Says which responses were left out, and ends a run that has no other ones."""
        one = self._too_large[0]
        words = (
            f"{len(self._too_large):,} responses are larger than a row and were left out, one of the task "
            f"{one.trajectory.task!r} with {len(one.paths)} paths of up to {max(map(len, one.paths)):,} tokens and "
            f"{one.turns:,} turns; raise config.data.sequence_length (4 tokens for each turn), or take "
            "config.rl.packing.shared_tokens=paths or a loss of tokens or turns"
        )
        self._run.note(f"step {self._run.step:,}: {words}")
        if self._without == PATIENCE:
            raise UserError(f"nothing was trained on in {PATIENCE} iterations: {words}")

    def _rows(self, update: Sequence[TrainingSample]) -> PackedRows:
        rl = self._config.rl
        # K2's objective is a square over the whole response, and the level sequence a ratio of it.
        splits = rl.loss.level != "sequence"
        options = {"splits_responses": splits, "routes": self._routes, "images": self._images}
        packed = pack(update, self._config.data.sequence_length, rl.packing, **options)
        if rl.loss.per_domain:
            equalize_domains(packed.rows)
        return packed


def _packing(updates: Sequence[PackedRows]) -> dict[str, float]:
    """Rows of all updates, their share of padding, and tokens of all paths over tokens stored."""
    rows = PackedRows(
        [row for update in updates for row in update.rows],
        sum(update.stored_tokens for update in updates),
        sum(update.path_tokens for update in updates),
    )
    return {"rows": len(rows.rows), "padding": rows.padding, "tokens_saved": rows.tokens_saved}


def _summary(metrics: Sequence[StepMetrics]) -> dict[str, Any]:
    """One value of an iteration for what each of its updates reports.

    Means over the updates, and of maxima the largest; but the mismatch is that of the first update, which alone
    compares the engine with the trainer at the same weights.
    """
    shares = [m.shares for m in metrics]
    scalars = [scalar_metrics(share) for share in shares]
    reduced = {
        name: float((np.max if name in shares[0].maxima else np.mean)([each[name] for each in scalars]))
        for name in scalars[0]
    }
    if len(shares[0].terms) > 1:
        reduced |= {f"loss/{name}": float(np.mean([share.terms[name] for share in shares])) for name in shares[0].terms}
    logits = [m.stats.max_logit for m in metrics]
    reduced |= logit_metrics({group: np.max([each[group] for each in logits], 0) for group in logits[0]})
    mean, largest = (float(scalars[0][name]) for name in ("tokens/mismatch", "tokens/mismatch_max"))
    return reduced | {
        "loss": float(np.mean([m.loss for m in metrics])),
        "grad_norm": float(np.mean([m.grad_norm for m in metrics])),
        "update_norm": float(np.mean([m.update_norm for m in metrics])),
        "tokens/mismatch": mean,
        "tokens/mismatch_p99": quantile(shares[0].metrics["tokens/mismatch_above"], 0.99, largest),
        "tokens/mismatch_max": largest,
    }
