"""The judge: a logistic regression on the evidence and its products, and what it says of the sentences of an answer.

It is small on purpose. A verdict costs a fraction of a millisecond in the process of the verifier, needs no server, is
the same on every machine, and can be read: each weight belongs to a measure with a name.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.files.bounded_json import parse_bounded_json
from k2jax.tasks.faithfulness.evidence import FEATURES, SentenceEvidence, claims_of, evidence, sentences_evidence

FILE = "judge.json"
VERSION = 1
_LARGEST = 1 << 20
_ROUNDS = 50
_PENALTY = 1.0


class SentenceVerdict(NamedTuple):
    """What the judge says of a sentence.

    Attributes:
        sentence: of the answer.
        probability: that the source supports it.
    """

    sentence: str
    probability: float


class SentenceJudge(NamedTuple):
    """A trained judge.

    Attributes:
        weights: float64 ``[inputs]``, see ``judge_inputs``.
        slope: of its calibration.
        offset: of its calibration.
    """

    weights: np.ndarray
    slope: float = 1.0
    offset: float = 0.0

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Log-odds before calibration, float64 ``[claims]``, of features ``[claims, len(FEATURES)]``."""
        return judge_inputs(features) @ self.weights

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Calibrated probabilities that claims are supported; arguments as of ``scores``."""
        return _sigmoid(self.slope * self.scores(features) + self.offset)

    def verdicts(self, source: str, answer: str) -> list[SentenceVerdict]:
        """What it says of every sentence of an answer that claims something."""
        found = sentences_evidence(source)
        return [SentenceVerdict(text, self.supported(found, clauses)) for text, clauses in claims_of(answer)]

    def supported(self, source: Sequence[SentenceEvidence], clauses: Sequence[SentenceEvidence]) -> float:
        """The probability of a sentence: the least of its clauses.

        Args:
            source: of ``sentences_evidence``.
            clauses: of ``claims_of``.
        """
        features = np.array([evidence(source, clause) for clause in clauses])
        return float(self.probabilities(features).min())

    def save(self, folder: Path) -> None:
        """Writes ``judge.json``."""
        fields = {
            "version": VERSION,
            "features": FEATURES,
            "weights": self.weights.tolist(),
            "slope": self.slope,
            "offset": self.offset,
        }
        write_atomic(folder / FILE, json.dumps(fields, indent=2) + "\n")


def judge_inputs(features: np.ndarray) -> np.ndarray:
    """A constant, the features, and the products of any two of them: float64 ``[claims, inputs]``."""
    rows, columns = np.triu_indices(features.shape[1])
    products = features[:, rows] * features[:, columns]
    return np.concatenate([np.ones((len(features), 1)), features, products], axis=1)


def fitted(features: np.ndarray, labels: np.ndarray) -> SentenceJudge:
    """The judge with the greatest likelihood, less a quadratic penalty; Newton's method.

    Args:
        features: float64 ``[claims, len(FEATURES)]``.
        labels: bool ``[claims]``.
    """
    return SentenceJudge(_newton(judge_inputs(features), labels.astype(float), _PENALTY))


def calibrated(judge: SentenceJudge, scores: np.ndarray, labels: np.ndarray) -> SentenceJudge:
    """The judge with Platt's slope and offset.

    Args:
        judge: to calibrate.
        scores: of claims by judges that were not trained on them, float64 ``[claims]``.
        labels: of these claims, bool ``[claims]``.
    """
    right = labels.sum()
    targets = np.where(labels, (right + 1) / (right + 2), 1 / (len(labels) - right + 2))  # Platt (1999)
    slope, offset = _newton(np.stack([scores, np.ones_like(scores)], axis=1), targets, 1e-6)
    return judge._replace(slope=float(slope), offset=float(offset))


@functools.lru_cache(maxsize=8)
def load_judge(folder: str) -> SentenceJudge:
    """Reads a judge.

    Raises:
        UserError: the folder has none, or one of another version.
    """
    path = Path(folder).expanduser() / FILE
    hint = "python -m k2jax.env.faithfulness writes one"
    try:
        if path.stat().st_size > _LARGEST:
            raise UserError(f"{path} is no judge; {hint}")
        fields = parse_bounded_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the judge {path}: {error}; {hint}") from None
    try:
        is_ours = fields["version"] == VERSION and tuple(fields["features"]) == FEATURES
        judge = SentenceJudge(np.array(fields["weights"], float), float(fields["slope"]), float(fields["offset"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is no judge; {hint}") from None
    size = judge_inputs(np.zeros((1, len(FEATURES)))).shape[1]
    numbers = (*judge.weights.ravel(), judge.slope, judge.offset)
    if not is_ours or judge.weights.shape != (size,) or not all(map(math.isfinite, numbers)):
        raise UserError(f"{path} is a judge of another version; train it again: {hint}")
    return judge


def _newton(inputs: np.ndarray, targets: np.ndarray, penalty: float) -> np.ndarray:
    """Weights of a logistic regression; the first one is penalised as all others are."""
    weights = np.zeros(inputs.shape[1])
    for _ in range(_ROUNDS):
        said = _sigmoid(inputs @ weights)
        slope = inputs.T @ (said - targets) + penalty * weights
        curvature = (inputs * (said * (1 - said))[:, None]).T @ inputs + penalty * np.eye(len(weights))
        step = np.linalg.solve(curvature, slope)
        weights -= step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def _sigmoid(scores: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * scores))
