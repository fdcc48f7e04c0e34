"""What a run of rephrasing is for: texts to train on, by the number of the rephrasing, and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k2jax.files.atomic import write_json_lines
from k2jax.synthesize.kept_results import StageResult
from k2jax.synthesize.rephrase.fact_world import questions_of
from k2jax.synthesize.rephrase.fidelity_judge import rephrased_text
from k2jax.synthesize.settings import SynthesisConfig
from k2jax.synthesize.stages import Record

FOLDER = "rephrasings"


def export_rephrasings(
    folder: Path, config: SynthesisConfig, results: Mapping[str, Sequence[StageResult]]
) -> dict[str, Any]:
    """Writes ``raw.jsonl``, ``rephrasings/NN.jsonl`` and, where facts are known, ``questions.jsonl``.

    Args:
        folder: of the run.
        config: of the run.
        results: of all stages by name.

    Returns:
        Counts, and what the checks found of what a program has planted.
    """
    kept = [record for result in results["distinct"] for record in result.made.kept]
    plans = [record for result in results["planned"] for record in result.made.kept]
    documents = {record["id"]: record for record in plans}
    write_json_lines(folder / "raw.jsonl", [_source(record) for record in documents.values()])
    numbers = sorted({record["rephrasing"] for record in plans})
    for number in numbers:
        texts = [_text(record) for record in kept if record["rephrasing"] == number]
        write_json_lines(folder / FOLDER / f"{number:02}.jsonl", texts)
    asked = [
        {"document": name, **question}
        for name, record in documents.items()
        for question in questions_of(record.get("facts", ()))
    ]
    if asked:
        write_json_lines(folder / "questions.jsonl", asked)
    judged = [record for result in results["judged"] for record in _all(result)]
    written = [record for result in results["rephrased"] for record in _all(result)]
    return {
        "documents": len(documents),
        "planned": len(plans),
        "rephrasings": len(kept),
        "by_style": dict(sorted(Counter(record["style"] for record in kept).items())),
        "checks": planted_and_found(written, judged),
    }


def planted_and_found(written: Iterable[Record], judged: Iterable[Record]) -> dict[str, dict[str, int]]:
    """By kind of what a program has planted, how many chunks there were, and who found it; of others false alarms.

    Args:
        written: records of the stage ``rephrased``, kept and dropped.
        judged: records of the stage ``judged``.
    """
    counts: dict[str, Counter[str]] = {}
    for record in written:
        for attempt in record.get("attempts", ()):
            one = counts.setdefault(attempt["planted"] or "nothing", Counter(chunks=0, overlap=0, judge=0))
            one["chunks"] += 1
            one["overlap"] += bool(attempt["found"])
    for record in judged:
        passed = [attempt for attempt in record["attempts"] if not attempt["found"]]
        for attempt, verdict in zip(passed, record.get("verdicts", ()), strict=False):
            found = bool(verdict["unsupported"] or verdict["missing"])
            counts[attempt["planted"] or "nothing"]["judge"] += found
    return {kind: dict(one) for kind, one in sorted(counts.items())}


def _all(result: StageResult) -> list[Record]:
    return [*result.made.kept, *(record for _, record in result.made.dropped)]


def _source(record: Record) -> dict[str, Any]:
    return {"text": record["text"], "document": record["id"], "domain": record["domain"]}


def _text(record: Record) -> dict[str, Any]:
    fields = {name: record[name] for name in ("domain", "rephrasing", "style", "perspective")}
    return {"text": rephrased_text(record), "document": record["id"], **fields}
