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
from k2jax.rl.distillation.teachers import Teachers
from k2jax.rl.sync.offload import at_rest
from k2jax.train.run import Run


class Distiller:
    """Writes what teachers say into the targets of the rows of an iteration.

    Args:
        run: of the student.
        teachers: one for every class of tasks.
    """

    def __init__(self, run: Run, teachers: Teachers):
        self._run, self._config, self._teachers = run, run.config.rl.distill, teachers
        self._scores: dict[int, np.ndarray] = {}
        self._gaps: list[np.ndarray] = []
        self._domains: list[np.ndarray] = []
        self._seconds = 0.0

    def begin(self, updates: Mapping[int, Sequence[PackedBatch]]) -> None:
        """Asks the teachers about all rows of an iteration, those ``[S]`` of every update by its number."""
        began, self._gaps, self._domains = time.perf_counter(), [], []
        with at_rest(self._run):
            scores = self._teachers.score([_without_routes(rows) for rows in updates.values()])
        self._scores = dict(zip(updates, scores, strict=True))
        self._seconds = time.perf_counter() - began

    def judge(self, number: int, rows: Sequence[PackedBatch]) -> bool:
        """Completes the targets of update ``number``, in place, before it is done.

        The gap of each sampled token is added to its advantage with ``config.rl.distill.weight``, or becomes its
        ``distill``, which the loss scales. Verdicts of the policy as a judge have no teacher, and a gap of 0.

        Args:
            number: of the update in the iteration.
            rows: of the update, as ``begin`` has seen them.

        Returns:
            Whether there is anything to train on: an advantage that is not 0, or a teacher that disagrees.
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
        return any(row.targets.advantage.any() or row.targets.distill.any() for row in rows)

    def record(self) -> Mapping[str, float]:
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


def equalize_domains(rows: Sequence[PackedBatch]) -> None:
    """Weighs the tokens of an update's rows, in place, so that every class of tasks in it counts equally.

    A mean over tokens becomes the mean over classes of the means over their tokens; the weights still add up to the
    number of sampled tokens, each counted as often as its responses.

    Args:
        rows: rows ``[S]`` with PolicyTargets, of the whole update.
    """
    domain = np.concatenate([row.targets.domain for row in rows])
    mask = np.concatenate([row.targets.mask for row in rows])
    counts = {number: mask[domain == number].sum() for number in np.unique(domain[mask > 0])}
    for row in rows:
        for number, count in counts.items():
            own_S = row.targets.domain == number
            row.targets.weight[own_S] = row.targets.mask[own_S] * (mask.sum() / (len(counts) * count))
