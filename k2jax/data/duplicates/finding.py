"""``python -m k2jax.data duplicates``: the duplicates of a folder of files, their attributes, and a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from k2jax.data.document_files import DocumentFile, StageLines, file_parts
from k2jax.data.duplicates.removal import DuplicateReport, Run, examples, remove_duplicates
from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.signed_parts import SignedParts
from k2jax.errors import abbreviate
from k2jax.report.table import percent, text_table

_SHOWN = 160  # characters of a document in the table of examples
_BEFORE = 40  # of them before the first difference
_MOST = 10  # records without a text that are named


def find_duplicates(
    documents: str, attributes: Path, cache: Path, settings: DuplicateSettings, *, field: str, run: Run, shown: int,
    log: Callable[[str], None],
) -> DuplicateReport:  # fmt: skip
    """Writes the attributes of all files and prints counts and examples.

    Args:
        documents: a folder, a file or a pattern of names.
        attributes: folder to write to.
        cache: folder for the work, which may be deleted.
        settings: what counts as a duplicate.
        field: of the text in a record.
        run: computes items; see ``remove_duplicates``.
        shown: pairs to show.
        log: receives lines.
    """
    parts = file_parts(documents, field)
    log(f"{len(parts):,} files, {sum(part.bytes for part in parts) / 1e6:,.1f} MB")
    report = remove_duplicates(parts, cache, settings, run, attributes=attributes, progress=StageLines(log))
    _report_empty(parts, report.signed, log)
    total = max(1, report.documents)
    rows = [("documents", report.documents, "")]
    rows += [(name, count, percent(count / total)) for name, count in report.removed.items()]
    rows += [("kept", report.kept, percent(report.kept / total))]
    log(text_table(("documents", "number", "share"), rows))
    log(f"{report.proposed:,} pairs were compared, {report.verified:,} are duplicates; attributes: {attributes}")
    for pair in examples(report, parts, shown):
        log(f"--- {pair['kind']}, {pair['score']:.3f}: removed, kept, from where they differ")
        names, texts = zip(*pair["texts"], strict=True)
        texts = [" ".join(text.split()) for text in texts]
        differ = next((at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
        for name, text in zip(names, texts, strict=True):
            log(f"{abbreviate(name, 80)}: {abbreviate(text[max(0, differ - _BEFORE) :], _SHOWN)}")
    return report


def _report_empty(parts: list[DocumentFile], signed: SignedParts, log: Callable[[str], None]) -> None:
    """Says which records have no text; files that have some are read again."""
    reasons: list[str] = []
    count = 0
    for number, part in enumerate(parts):
        documents = signed.documents(np.arange(*signed.starts[number : number + 2]))
        if empty := int((documents["characters"] == 0).sum()):
            count += empty
            if len(reasons) < _MOST:
                deque(part.read(lambda where, why: reasons.append(f"{where}: {why}")), maxlen=0)
    if count:
        log(f"{count:,} records have no text and count as empty documents")
    for reason in reasons[:_MOST]:
        log(reason)
