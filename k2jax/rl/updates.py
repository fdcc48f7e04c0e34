"""The optimizer's updates of an iteration: groups to advantages, rows, gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import operator
import time
from typing import Any

import jax
import numpy as np

from k2jax.batch import PackedBatch
from k2jax.data import TrainingData
from k2jax.losses.quantiles import quantile
from k2jax.rl.distillation.distiller import Distiller, equalize_domains
from k2jax.rl.distillation.teachers import Teachers
from k2jax.rl.old_logprobs import OldLogprobs
from k2jax.rl.packing.images import image_batches
from k2jax.rl.packing.rows import ImageSource, PackedRows, in_updates, pack, parts_of, ptx_row
from k2jax.rl.packing.training_paths import TrainingSample, replayed_routes
from k2jax.rl.rewards.advantages import group_advantages
from k2jax.rl.rewards.toggle import Toggle
from k2jax.rl.rollouts import PromptGroup
from k2jax.rl.scoring_pass import ScoringPass
from k2jax.rl.training_marks import Marker
from k2jax.text.media_reading import MediaReader
from k2jax.train.record import logit_metrics, scalar_metrics
from k2jax.train.run import Run
from k2jax.train.step import StepMetrics


class Updates:
    """Trains on the groups of an iteration in ``config.rl.updates`` optimizer steps.

    Args:
        run: the run.
        toggle: what rewards count.
        ptx: the data of PTX, of which this process reads all rows; None without PTX.
        teachers: of distillation; None without it.
        media: reads the images of messages; None for a model of text.
    """

    def __init__(
        self,
        run: Run,
        toggle: Toggle,
        ptx: TrainingData | None = None,
        teachers: Teachers | None = None,
        media: MediaReader | None = None,
    ):
        self._run, self._config = run, run.config
        sharding = run.program.batch_sharding()
        self._local_rows, self._image_batches = sharding.rows, image_batches(sharding, run.config.model.vision)
        self._images = None if media is None else ImageSource(media, run.config.data.images.patches)
        self._toggle, self._ptx = toggle, ptx
        score = self._scoring()
        loss = self._config.rl.loss
        self._old_logprobs = None if loss.old == "rollout" else OldLogprobs(self._config, score, run.note)
        self._marker = Marker(loss, score) if self._config.rl.record_masks else None
        self._distiller = None if teachers is None else Distiller(run, teachers)
        self._routes = replayed_routes(self._config)

    def train(self, step: int, groups: Sequence[PromptGroup]) -> dict[str, Any]:
        """Updates the weights, and returns metrics of the updates, see ``_summary``.

        Updates without signal, in which every advantage is 0 and no teacher disagrees, are left out: the size of an
        update of Muon or Adam does not depend on that of the gradient, and it would be a step into a random direction.
        """
        rl, began = self._config.rl, time.perf_counter()
        samples, flat = self._samples(step, groups)
        record = {"flat_groups": flat / max(1, len(groups)), **self._toggle.record(step, groups)}
        if flat == len(groups) and self._distiller is None:
            return record | {"updates": 0, "train_seconds": time.perf_counter() - began}
        updates, recomputed = self._packed(step, samples)
        if self._distiller:
            self._distiller.begin({number: packed.rows for number, packed in updates.items()})
        metrics, done = [], []
        for number, packed in updates.items():
            rows = packed.rows
            if self._distiller and not self._distiller.judge(number, rows):
                continue
            if rl.loss.per_domain:
                equalize_domains(rows)
            done.append(packed)
            if self._marker:
                self._marker.mark(number, packed, rows)
            ptx = [] if self._ptx is None else self._ptx_rows((step - 1) * rl.updates + number)
            parts = parts_of(rows + ptx, self._config.train.batch_size, self._local_rows, self._image_batches)
            metrics.append(self._run.update(parts))
        record |= {"updates": len(metrics), "train_seconds": time.perf_counter() - began} | recomputed
        record |= _packing(done) | (self._distiller.record() if self._distiller else {})
        if metrics:
            record |= self._run.recorder.rates(sum(int(m.tokens) for m in metrics), record["train_seconds"])
            record |= _summary(metrics)
        return record

    def _samples(self, step: int, groups: Sequence[PromptGroup]) -> tuple[list[list[TrainingSample]], int]:
        """What is trained on of each group, and the number of groups whose advantages are all 0."""
        rl, samples, flat = self._config.rl, [], 0
        numbers = {name: number for number, name in enumerate(sorted(rl.tasks))}
        for group in groups:
            rewards, counted = self._toggle.rewards(step, group)
            advantages = group_advantages(rewards[None], counted[None], rl.advantage)[0]
            flat += not advantages.any()
            if advantages.any() or not rl.skip_flat_groups:
                kept = advantages if rl.distill.rewards else np.zeros_like(advantages)
                domain = numbers.get(group.prompt.kind, len(numbers))  # verdicts of the policy are a class of their own
                samples.append(_counted(group, kept, counted, domain))
        return samples, flat

    def _packed(
        self, step: int, samples: Sequence[Sequence[TrainingSample]]
    ) -> tuple[dict[int, PackedRows], dict[str, float]]:
        """The rows of updates that may have a signal, by their number, and what the passes for log pi_old report."""
        rl, updates = self._config.rl, {}
        for number, update in enumerate(in_updates(samples, rl.updates)):
            if self._distiller or any(sample.advantage for sample in update):
                # K2's objective is a square over the whole response, and the level sequence a ratio of it.
                splits = rl.loss.level != "sequence"
                options = {"splits_responses": splits, "routes": self._routes, "images": self._images}
                updates[number] = pack(update, self._config.data.sequence_length, rl.packing, **options)
        if self._old_logprobs is None or not updates:
            return updates, {}
        filled, record = self._old_logprobs.fill(step, [packed.rows for packed in updates.values()])
        pairs = zip(updates.items(), filled, strict=True)
        return {number: packed._replace(rows=rows) for (number, packed), rows in pairs}, record

    def _scoring(self) -> Callable[[Sequence[PackedBatch]], np.ndarray] | None:
        """A forward pass with the weights as they are, in runs that need one."""
        if self._config.rl.loss.old == "rollout" and not self._config.rl.record_masks:
            return None
        # It drops rows of the exchange of experts where a training step would: that is noise of the policy, too.
        scoring = ScoringPass(self._config, self._run.program.mesh, self._config.parallel.expert_slots)
        return lambda rows: scoring.score_rows(self._run.state.params, rows)

    def _ptx_rows(self, number: int) -> list[PackedBatch]:
        batch = self._ptx.loader.batch(number)
        rows = [jax.tree.map(operator.itemgetter(row), batch) for row in range(len(batch.tokens))]
        return [ptx_row(row, self._routes) for row in rows]


def _counted(group: PromptGroup, advantages: np.ndarray, counted: np.ndarray, domain: int) -> list[TrainingSample]:
    chosen = [i for i in range(len(counted)) if counted[i]]
    return [TrainingSample(group.trajectories[i], float(advantages[i]), domain) for i in chosen]


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
    reduced |= logit_metrics(jax.tree.map(lambda *logits: np.max(logits, 0), *[m.stats.max_logit for m in metrics]))
    mean, largest = (float(scalars[0][name]) for name in ("tokens/mismatch", "tokens/mismatch_max"))
    return reduced | {
        "loss": float(np.mean([m.loss for m in metrics])),
        "grad_norm": float(np.mean([m.grad_norm for m in metrics])),
        "update_norm": float(np.mean([m.update_norm for m in metrics])),
        "tokens/mismatch": mean,
        "tokens/mismatch_p99": quantile(shares[0].metrics["tokens/mismatch_above"], 0.99, largest),
        "tokens/mismatch_max": largest,
    }
