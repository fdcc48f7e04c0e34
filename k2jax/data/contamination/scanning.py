"""``python -m k2jax.data contamination``: evaluation items in a folder of files, their attributes, and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from k2jax.data.contamination.evaluation_items import read_items
from k2jax.data.contamination.gram_index import FEWEST_WORDS, read_index, write_index
from k2jax.data.contamination.marking import ContaminationReport, mark_contamination
from k2jax.data.contamination.matching import ContaminationSettings
from k2jax.data.document_files import StageLines, file_parts
from k2jax.data.duplicates.removal import Run
from k2jax.errors import abbreviate
from k2jax.report.table import percent, text_table


def find_contamination(
    documents: str, against: Sequence[str], attributes: Path, cache: Path, settings: ContaminationSettings, *,
    field: str, run: Run, shown: int, log: Callable[[str], None],
) -> ContaminationReport:  # fmt: skip
    """Writes the attributes of all files and prints counts and examples.

    Args:
        documents: a folder, a file or a pattern of names.
        against: evaluation sets; see ``read_items``.
        attributes: folder to write to.
        cache: folder for the work, which may be deleted.
        settings: what counts as an item in a document.
        field: of the text in a record.
        run: applies a function to files.
        shown: matches to show.
        log: receives lines.
    """
    items = [item for each in against for item in read_items(each)]
    index = write_index(items, cache)
    parts = file_parts(documents, field)
    log(f"{len(parts):,} files, {sum(part.bytes for part in parts) / 1e6:,.1f} MB against {len(items):,} items")
    if too_short := read_index(index).too_short:
        log(f"{too_short:,} questions have fewer than {FEWEST_WORDS} words and are not looked for")
    report = mark_contamination(
        parts, index, cache, settings, run, attributes=attributes, progress=StageLines(log)
    )  # fmt: skip
    of_set = Counter(item.set for item in items)
    rows = [
        (name, count, report.items.get(name, 0), percent(report.items.get(name, 0) / count), report.by_set.get(name, 0))
        for name, count in sorted(of_set.items())
    ]
    log(text_table(("evaluation set", "items", "found", "share", "documents that hold one"), rows))
    log(f"{report.contaminated:,} of {report.documents:,} documents hold an item; attributes: {attributes}")
    for match in report.examples[:shown]:
        answered = ", answer near" if match["answered"] else ""
        log(f"--- {match['item']} in {abbreviate(match['id'], 80)}, {match['score']:.3f}{answered}")
        log(abbreviate(" ".join(match["text"].split()), 160))
    return report
