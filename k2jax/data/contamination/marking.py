"""Marks the documents of all parts that hold evaluation items, as attributes in dolma's layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import json
from pathlib import Path
import re
import shutil
from typing import Any

from k2jax.data.contamination.gram_index import VERSION, GramIndex, read_index
from k2jax.data.contamination.matching import ContaminationSettings, Match, matches
from k2jax.data.duplicates.attributes import attribute_path, write_lines
from k2jax.data.duplicates.part_files import key_of
from k2jax.data.duplicates.removal import Progress, Run
from k2jax.data.duplicates.signatures import DocumentPart
from k2jax.data.duplicates.words import batches, hash_words
from k2jax.files.atomic import write_atomic

TAGGER = "contamination"
_EXAMPLES = 3  # matches of a part that its record keeps with their texts
_TEXT = 200  # characters of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContaminationReport:
    """What was found.

    Attributes:
        documents: how many were looked at.
        contaminated: documents that hold an item.
        by_set: for each evaluation set, documents that hold one of its items.
        items: for each evaluation set, its items that are in some document.
        examples: ``id``, ``item``, ``score``, ``answered`` and ``text`` of some matches.
    """

    documents: int
    contaminated: int
    by_set: dict[str, int]
    items: dict[str, int]
    examples: list[dict[str, Any]]


def mark_contamination(
    parts: Sequence[DocumentPart],
    index: Path,
    folder: Path,
    settings: ContaminationSettings,
    run: Run = map,
    *,
    attributes: Path,
    progress: Progress = lambda *_: None,
) -> ContaminationReport:
    """Writes ``contamination/NAME.jsonl.gz`` for each part.

    Args:
        parts: the documents.
        index: file of the evaluation items; see ``gram_index.write_index``.
        folder: for work files; a part that is done already is not read again. It may be deleted afterwards.
        settings: what counts.
        run: applies a function to parts, as ``map`` does.
        attributes: folder to write to.
        progress: receives what is done.
    """
    mark = functools.partial(mark_part, index=index, folder=folder, settings=settings)
    documents = contaminated = 0
    by_set: Counter[str] = Counter()
    items: dict[str, set[str]] = {}
    examples: list[dict[str, Any]] = []
    for number, (part, record) in enumerate(zip(parts, run(mark, parts), strict=True)):
        path = attribute_path(attributes, TAGGER, part.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(record["attributes"], path)
        documents += record["documents"]
        contaminated += record["contaminated"]
        by_set.update(record["by_set"])
        examples += record["examples"]
        for name, found in record["items"].items():
            items.setdefault(name, set()).update(found)
        progress("look for evaluation items", number + 1, len(parts), documents)
    counts = {name: len(found) for name, found in items.items()}
    return ContaminationReport(
        documents=documents, contaminated=contaminated, by_set=dict(by_set), items=counts, examples=examples
    )


def mark_part(part: DocumentPart, *, index: Path, folder: Path, settings: ContaminationSettings) -> dict[str, Any]:
    """Marks the documents of a part, unless that was done before; returns counts, items and examples."""
    key = key_of("marks", VERSION, part.key, index.name, dataclasses.asdict(settings))
    path, record = folder / f"{key}.jsonl.gz", folder / f"{key}.json"
    if not record.exists():
        marks = _Marks(read_index(index), settings)
        write_lines(path, marks.lines(part))
        write_atomic(record, json.dumps(marks.record()))
    return json.loads(record.read_text()) | {"attributes": str(path)}


class _Marks:
    """Lines of attributes of one part, and what was found in it."""

    def __init__(self, index: GramIndex, settings: ContaminationSettings):
        self._index, self._settings = index, settings
        self._documents = self._contaminated = 0
        self._by_set: Counter[str] = Counter()
        self._items: dict[str, set[str]] = {}
        self._examples: list[dict[str, Any]] = []

    def record(self) -> dict[str, Any]:
        """Counts, items and examples as JSON values."""
        return {
            "documents": self._documents,
            "contaminated": self._contaminated,
            "by_set": dict(self._by_set),
            "items": {name: sorted(found) for name, found in self._items.items()},
            "examples": self._examples,
        }

    def lines(self, part: DocumentPart) -> Iterator[dict[str, Any]]:
        """A line for every document: a span for each match by set, and the matches by item."""
        for batch in batches(part.read()):
            found: dict[int, list[Match]] = {}
            for match in matches(hash_words([text for _, text in batch]), self._index, self._settings):
                found.setdefault(match.document, []).append(match)
            for number, (name, text) in enumerate(batch):
                self._documents += 1
                line: dict[str, Any] = {"id": name, "attributes": {}}
                if number in found:
                    self._mark(line, text, found[number])
                yield line

    def _mark(self, line: dict[str, Any], text: str, found: list[Match]) -> None:
        line["matches"] = []
        for match in found:
            item, name = str(self._index.ids[match.item]), str(self._index.sets[self._index.set_of[match.item]])
            begin, end = character_span(text, match.begin, match.end)
            spans = line["attributes"].setdefault(f"{TAGGER}__{name}", [])
            spans.append([begin, end, round(match.score, 6)])
            facts = {"item": item, "score": round(match.score, 6), "answered": match.answered}
            line["matches"].append(facts)
            self._items.setdefault(name, set()).add(item)
            if len(self._examples) < _EXAMPLES:
                self._examples.append({"id": line["id"], "text": text[begin : min(end, begin + _TEXT)]} | facts)
        self._contaminated += 1
        self._by_set.update({str(self._index.sets[self._index.set_of[match.item]]) for match in found})


def character_span(text: str, begin: int, end: int) -> tuple[int, int]:
    """Where words of a text begin and end [characters], by their numbers.

    Words are those of ``hash_words``, which are counted in beginnings of the text: a text may have others once its
    characters are brought into one form.
    """
    first = _before(text, begin)
    last = _before(text, end)
    return first, first + len(re.sub(r"[\W_]*\Z", "", text[first:last])) if last < len(text) else len(text)


def _before(text: str, words: int) -> int:
    """The largest number of characters of a text whose beginning has so many words."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(hash_words([text[:middle]]).words) <= words:
            low = middle
        else:
            high = middle - 1
    return low
