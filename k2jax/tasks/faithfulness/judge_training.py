r"""Trains the judge of faithfulness: whether a source supports a sentence (Kimi K2, section 3.2.1).

Example:
    python -m k2jax.env.faithfulness --workdir=runs/faithfulness
    python -m k2jax.env.faithfulness --workdir=runs/faithfulness-mine --pairs=mine.jsonl

It learns from sources with claims that are drawn by --seed; those that it is measured on have other topics, wordings
and names. With --pairs it learns and is measured on yours: lines of JSON with source, claim and supported, of which a
fifth, by source, is held out. The workdir gets judge.json, metrics.json and calibration.png. Tasks whose metadata name
the folder are rewarded by it: see docs/synthesis.md.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
from pathlib import Path
import time
from typing import Any, NamedTuple
import zlib

from absl import flags
import numpy as np

from k2jax import cli
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.files.readers import json_lines
from k2jax.tasks.faithfulness.evidence import claims_of, evidence, sentences_evidence
from k2jax.tasks.faithfulness.generated_pairs import ClaimDrawer, ClaimPair
from k2jax.tasks.faithfulness.judge_measures import (
    area_under_curve,
    calibration_bins,
    calibration_picture,
    expected_calibration_error,
)
from k2jax.tasks.faithfulness.sentence_judge import SentenceJudge, calibrated, fitted

_LEAST = 20


class PairSplits(NamedTuple):
    """Pairs to train on and to measure on."""

    train: list[ClaimPair]
    held_out: list[ClaimPair]


def generated_splits(count: int, seed: int) -> PairSplits:
    """Drawn pairs: ``count`` to train on, and half as many of other topics to measure on."""
    return PairSplits(ClaimDrawer(seed).pairs(count), ClaimDrawer(seed, held_out=True).pairs(count // 2))


def read_splits(path: str) -> PairSplits:
    """Pairs of a file, by a hash of their source: four fifths to train on, a fifth to measure on.

    Raises:
        UserError: a line is no pair, or a part has too few of both kinds.
    """
    parts: list[list[ClaimPair]] = [[], []]

    def refuse(where: str, why: str) -> None:
        raise UserError(f"{where}: {why}")

    for _, where, value, _ in json_lines(Path(path), refuse):
        fields = value if isinstance(value, dict) else {}
        source, claim, supported = (fields.get(name) for name in ("source", "claim", "supported"))
        if not (isinstance(source, str) and isinstance(claim, str) and isinstance(supported, bool)):
            refuse(where, "a pair has the strings source and claim, and supported, true or false")
        if not claims_of(claim):
            continue
        place = zlib.crc32(source.encode(errors="replace")) % 5
        parts[place == 4].append(ClaimPair(source, claim, supported, topic=str(place)))
    for part in parts:
        right = sum(pair.supported for pair in part)
        if min(right, len(part) - right) < _LEAST:
            raise UserError(f"{path} needs some {10 * _LEAST} pairs at least, half of them supported, of many sources")
    return PairSplits(*parts)


def trained(pairs: Sequence[ClaimPair]) -> SentenceJudge:
    """A judge of claims, trained on those of one clause.

    It is calibrated on what judges say of a topic that have been trained on all others: a judge is always surer of the
    topics that it knows.
    """
    features, labels, topics = _simple(pairs)
    scores = np.zeros(len(labels))
    for topic in sorted(set(topics)):
        own = topics == topic
        scores[own] = fitted(features[~own], labels[~own]).scores(features[own])
    return calibrated(fitted(features, labels), scores, labels)


def measured(judge: SentenceJudge, pairs: Sequence[ClaimPair]) -> dict[str, Any]:
    """How good a judge is on pairs: area under the curve, also by what makes claims unsupported, and calibration."""
    said, labels = said_of(judge, pairs), np.array([pair.supported for pair in pairs])
    kinds = sorted({pair.kind for pair in pairs if pair.kind})
    by_kind = {
        kind: area_under_curve(said[own], labels[own])
        for kind in kinds
        if (own := labels | np.array([pair.kind == kind for pair in pairs])).any()
    }
    bins = calibration_bins(said, labels)
    return {
        "pairs": len(pairs),
        "area_under_curve": area_under_curve(said, labels),
        "by_kind": by_kind,
        "accuracy": float(((said >= 0.5) == labels).mean()),
        "expected_calibration_error": expected_calibration_error(bins),
        "bins": [one._asdict() for one in bins],
    }


def said_of(judge: SentenceJudge, pairs: Sequence[ClaimPair]) -> np.ndarray:
    """Probabilities of claims, float64 ``[pairs]``; of one with several sentences the least."""
    said = []
    for pair in pairs:
        source = sentences_evidence(pair.source)
        said.append(min((judge.supported(source, clauses) for _, clauses in claims_of(pair.claim)), default=0.0))
    return np.array(said)


def _simple(pairs: Sequence[ClaimPair]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and topics of the claims of one clause."""
    found = [(pair, claims) for pair in pairs if len(claims := claims_of(pair.claim)) == 1 and len(claims[0][1]) == 1]
    features = [evidence(sentences_evidence(pair.source), claims[0][1][0]) for pair, claims in found]
    labels, topics = zip(*((pair.supported, pair.topic) for pair, _ in found), strict=True)
    return np.array(features), np.array(labels), np.array(topics)


def define(values: flags.FlagValues) -> None:
    """Adds the command's flags."""
    to = {"flag_values": values}
    flags.DEFINE_string("workdir", None, "Folder of the judge.", **to)
    flags.DEFINE_string("pairs", "", "Lines of JSON with source, claim, supported; empty draws them.", **to)
    flags.DEFINE_integer("count", 6000, "Pairs that are drawn to train on.", **to, lower_bound=100)
    flags.DEFINE_integer("seed", 0, "Of what is drawn.", **to, lower_bound=0)


def main(values: flags.FlagValues) -> None:
    """Runs the command."""
    cli.require(values, "workdir")
    folder, begun = Path(values.workdir).expanduser(), time.perf_counter()
    splits = read_splits(values.pairs) if values.pairs else generated_splits(values.count, values.seed)
    judge = trained(splits.train)
    metrics = measured(judge, splits.held_out)
    judge.save(folder)
    write_atomic(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
    bins = calibration_bins(said_of(judge, splits.held_out), np.array([pair.supported for pair in splits.held_out]))
    calibration_picture(bins, folder / "calibration.png", "Calibration on held-out claims")
    kinds = " · ".join(f"{kind} {area:.3f}" for kind, area in metrics["by_kind"].items())
    print(f"trained on {len(splits.train):,} pairs, measured on {metrics['pairs']:,} that it has not seen")
    print(f"area under the ROC curve {metrics['area_under_curve']:.3f}" + (f" ({kinds})" if kinds else ""))
    print(f"accuracy {metrics['accuracy']:.3f} · calibration error {metrics['expected_calibration_error']:.3f}")
    print(f"{folder}/judge.json, metrics.json, calibration.png in {time.perf_counter() - begun:.0f} s")


def command() -> None:
    """Runs the command line."""
    cli.run(main, define, __doc__)
