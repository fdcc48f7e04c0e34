"""On-policy distillation: what teachers say of the student's own tokens becomes advantages (KAT-Coder-V2, section 3.4).

For a sampled token it is log pi_teacher - log pi, both at the temperature of its sampling. Each side is one forward
pass: the teacher's at the start of an iteration, the student's under the weights that the coming update starts from.
Both go through one program, in the same batches, so that equal weights differ by exactly 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import time

import numpy as np

from k2jax.batch import PackedBatch
from k2jax.config.schema import Config
from k2jax.losses.base import Loss
from k2jax.losses.distill import Distillation as DistillationTerm
from k2jax.rl.groups import PromptGroup
from k2jax.rl.methods.base import Method, Methods, Parts, refuse_images
from k2jax.rl.methods.teacher_table import chosen_teachers
from k2jax.rl.methods.teachers import Teachers
from k2jax.rl.packing.rows import PackedRows
from k2jax.rl.sampler import Sampler
from k2jax.rl.sync.offload import offloaded
from k2jax.train.run import Run


class OnPolicyDistillation(Method):
    """Writes what teachers say into the targets of the rows of an iteration.

    Args:
        config: the experiment.
        teachers: one for every class of tasks.
    """

    has_signal = True

    def __init__(self, config: Config, teachers: Teachers):
        self._config, self._teachers = config.rl.distill, teachers
        self._run: Run | None = None
        self._scores: dict[int, np.ndarray] = {}
        self._gaps: list[np.ndarray] = []
        self._domains: list[np.ndarray] = []
        self._seconds = 0.0

    @staticmethod
    def used(config: Config) -> bool:
        """Whether distillation has a weight."""
        return bool(config.rl.distill.weight)

    @staticmethod
    def check(config: Config) -> None:
        """Teachers see no images; raises UserError."""
        refuse_images(config, "rl.distill.weight", bool(config.rl.distill.weight))

    @staticmethod
    def terms(config: Config) -> tuple[Loss, ...]:
        """The gap as a component of its own, where it is not added to advantages."""
        distill = config.rl.distill
        return (DistillationTerm(distill.weight),) if distill.into == "component" else ()

    @classmethod
    def open(cls, parts: Parts, methods: Methods) -> OnPolicyDistillation:
        """See ``Method``; who teaches what is part of the run's identity."""
        chosen = chosen_teachers(parts.config, parts.workdir)
        teachers = Teachers(parts.config, parts.program, parts.tokenizer, chosen)
        parts.identity["set of teachers"] = teachers.fingerprint
        return cls(parts.config, teachers)

    def begin(self, run: Run, sampler: Sampler) -> None:
        """The student is the policy of ``run``."""
        self._run = run

    def prepare(self, step: int, updates: Mapping[int, PackedRows]) -> Mapping[int, PackedRows]:
        """Asks the teachers about the rows of all updates."""
        began, self._gaps, self._domains = time.perf_counter(), [], []
        with offloaded(self._run):
            scores = self._teachers.score([_without_routes(packed.rows) for packed in updates.values()])
        self._scores = dict(zip(updates, scores, strict=True))
        self._seconds = time.perf_counter() - began
        return updates

    def before_update(self, step: int, number: int, rows: list[PackedBatch]) -> list[PackedBatch] | None:
        """Completes the targets of an update, in place.

        The gap of each sampled token is added to its advantage with ``config.rl.distill.weight``, or becomes its
        ``distill``, which the loss scales. Verdicts of the policy as a judge have no teacher, and a gap of 0.

        Returns:
            The rows; None where there is nothing to train on: every advantage is 0, and no teacher disagrees.
        """
        began, teacher_RS = time.perf_counter(), self._scores[number]
        student_RS = self._teachers.student.score_rows(self._run.state.params, _without_routes(rows))
        for row, teacher_S, student_S in zip(rows, teacher_RS, student_RS, strict=True):
            targets = row.targets
            judged_S = (targets.domain >= 0) & (targets.domain < len(self._teachers.classes))
            gap_S = np.where(judged_S, teacher_S - student_S, np.float32(0))
            if self._config.into == "advantage":
                targets.advantage[:] += np.float32(self._config.weight) * gap_S
            else:
                targets.distill[:] = gap_S
            self._gaps.append(gap_S[judged_S])
            self._domains.append(targets.domain[judged_S])
        self._seconds += time.perf_counter() - began
        is_flat = not any(row.targets.advantage.any() or row.targets.distill.any() for row in rows)
        return None if is_flat else rows

    def record(self, step: int, groups: Sequence[PromptGroup]) -> Mapping[str, float]:
        """Metrics of the iteration: the mean of log pi - log pi_teacher over its tokens, and over those of each class.

        It estimates the reverse Kullback-Leibler divergence of student and teacher without bias [nats per token].
        """
        if not self._gaps:
            return {}
        gap, domain = np.concatenate(self._gaps), np.concatenate(self._domains)
        mean = lambda chosen: float(0.0 - np.mean(gap[chosen], dtype=np.float64))  # noqa: E731
        record = {"distill/reverse_kl": mean(slice(None)), "distill_seconds": self._seconds}
        by_class = {number: domain == number for number in np.unique(domain)}
        return record | {
            f"distill/reverse_kl/{self._teachers.classes[number]}": mean(own) for number, own in by_class.items()
        }


def _without_routes(rows: Sequence[PackedBatch]) -> list[PackedBatch]:
    """Rows in which each model's own router decides, also where training replays the experts of the sampling."""
    return [row.replace(experts=None) for row in rows]
