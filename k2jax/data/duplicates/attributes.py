"""Attributes of documents in dolma's layout: beside ``documents/x.jsonl.gz`` there is ``attributes/TAGGER/x.jsonl.gz``.

Every document has a line, in the same order: ``{"id": ..., "attributes": {"duplicates__near": [[0, 1204, 0.91]]}}``.
A decision can so be changed without reading texts again.
"""

from __future__ import annotations

from collections.abc import Iterable
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.data.duplicates.signed_parts import SignedParts
from k2jax.data.duplicates.verification import KINDS
from k2jax.files.atomic import replacing

TAGGER = "duplicates"
_TOGETHER = 1 << 12


def attribute_path(attributes: Path, tagger: str, name: str) -> Path:
    """The file with a tagger's attributes of the documents in a file of this name, whatever its kind."""
    stem = name
    for end in (".gz", ".zst", ".bz2", ".xz", ".jsonl", ".ndjson", ".json", ".parquet"):
        stem = stem.removesuffix(end)
    return attributes / tagger / f"{stem}.jsonl.gz"


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes objects as lines of a compressed file, atomically and with the same bytes whenever it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
        for line in lines:
            compressed.write(json.dumps(line).encode() + b"\n")


def write_attributes(attributes: Path, part: int, removals: np.ndarray, signed: SignedParts, names: list[str]) -> Path:
    """Writes a part's attributes: of a removed document the span, its score, and the ``keeper`` by file, row and name.

    Args:
        attributes: the folder.
        part: its number.
        removals: those of the part, sorted by position.
        signed: the documents.
        names: of the files of all parts.

    Returns:
        The path of the file.
    """
    path = attribute_path(attributes, TAGGER, names[part])
    write_lines(path, _lines(part, removals, signed, names))
    return path


def _lines(part: int, removals: np.ndarray, signed: SignedParts, names: list[str]) -> Iterable[dict[str, Any]]:
    begin, end = signed.starts[part : part + 2].tolist()
    for at in range(begin, end, _TOGETHER):
        positions = np.arange(at, min(at + _TOGETHER, end))
        rows = removals[slice(*np.searchsorted(removals["position"], [at, at + _TOGETHER]))]
        characters = signed.documents(rows["position"])["characters"].tolist()
        keepers = zip(signed.ids(rows["keeper"]), signed.part_of(rows["keeper"]).tolist(), strict=True)
        found = dict(zip(rows["position"].tolist(), zip(rows.tolist(), characters, keepers, strict=True), strict=True))
        for position, name in zip(positions.tolist(), signed.ids(positions), strict=True):
            line: dict[str, Any] = {"id": name, "attributes": {}}
            if position in found:
                (_, keeper, score, kind), length, (keeper_name, of) = found[position]
                line["attributes"][f"{TAGGER}__{KINDS[kind]}"] = [[0, length, round(score, 6)]]
                line["keeper"] = {"file": names[of], "row": keeper - int(signed.starts[of]), "id": keeper_name}
            yield line
