"""Documents in dolma's layout, without those that attributes beside them exclude.

``documents/x.jsonl.gz`` holds ``{"id": ..., "text": ...}``, and ``attributes/TAGGER/x.jsonl.gz`` a line for each of
them: ``{"id": ..., "attributes": {NAME: [[begin, end, score], ...]}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import itertools
from pathlib import Path
from typing import Any, NamedTuple

from k2jax.errors import UserError, abbreviate
from k2jax.files.content import FileRange
from k2jax.files.objects.object_path import ObjectPath
from k2jax.files.readers import JsonLine, checked_text, lines_of_json

DOCUMENTS, ATTRIBUTES = "documents", "attributes"


class Exclusion(NamedTuple):
    """A document is excluded where a tagger gives the attribute a span of at least this score."""

    tagger: str
    attribute: str
    score: float


def exclusion(text: str) -> Exclusion:
    """Reads ``TAGGER/ATTRIBUTE`` or ``TAGGER/ATTRIBUTE>=SCORE``; without a score any span excludes.

    Raises:
        UserError: it is neither.
    """
    place, has_score, score = text.partition(">=")
    tagger, _, attribute = place.strip().partition("/")
    try:
        least = float(score) if has_score else float("-inf")
    except ValueError:
        least = None
    if least is None or not tagger or not attribute or tagger in (".", ".."):
        raise UserError(f"exclude has {abbreviate(text)}: write TAGGER/ATTRIBUTE or TAGGER/ATTRIBUTE>=0.5")
    return Exclusion(tagger, attribute, least)


def attribute_files(documents: Sequence[Path | ObjectPath], exclude: Sequence[str]) -> list[tuple[Any, ...]]:
    """The files of attributes beside each file of documents, one of every tagger that is named, by its name.

    A folder in a store is listed once, so that its objects have their sizes and versions.

    Args:
        documents: files below a folder ``documents``, in any order.
        exclude: see ``exclusion``.

    Raises:
        UserError: one of them is not there, or a file is below no such folder.
    """
    taggers, listings = _taggers(map(exclusion, exclude)), {}
    return [tuple(_attribute_file(path, tagger, listings) for tagger in taggers) for path in documents]


def _taggers(rules: Iterable[Exclusion]) -> list[str]:
    return sorted({rule.tagger for rule in rules})


def _attribute_file(
    documents: Path | ObjectPath, tagger: str, listings: dict[ObjectPath, dict[str, ObjectPath]]
) -> Path | ObjectPath:
    """A file of attributes; ``listings`` has the objects below folders, and gets those of further ones."""
    before, folder, name = str(documents).rpartition(f"/{DOCUMENTS}/")
    if not folder:
        raise UserError(f"exclude reads attributes beside a folder {DOCUMENTS!r}, and {documents} is in none")
    if isinstance(documents, Path):
        place = Path(before, ATTRIBUTES, tagger, name)
        found = place if place.is_file() else None
    else:
        beside = ObjectPath.parse(before) / ATTRIBUTES / tagger
        if beside not in listings:
            listings[beside] = {str(path): path for path in beside.below()}
        place = f"{beside}/{name}"
        found = listings[beside].get(place)
    if found is None:
        raise UserError(f"{documents} has no attributes in {place}: write them, or take them out of exclude")
    return found


def dolma(
    part: FileRange, field: str, exclude: Sequence[str], report: Callable[[str, str], None]
) -> Iterator[tuple[str, str]]:
    """Reads the documents of a file that no attribute excludes, named by their ids.

    Args:
        part: the whole file, with its attributes, see ``attribute_files``.
        field: of the text.
        exclude: see ``exclusion``.
        report: receives the place and the reason of what cannot be used: an attribute's line too, whose document is
            then left out.
    """
    rules = [exclusion(each) for each in exclude]
    taggers = _taggers(rules)
    for line, *marks in itertools.zip_longest(*map(lines_of_json, (part.path, *part.attributes))):
        if line is None:
            report(f"{part.path}", "it has fewer lines than its attributes")
            return
        if line.why:
            report(line.where, line.why)
            continue
        if (text := checked_text(line.value, field, line.where, report)) is None:
            continue
        if why := next(filter(None, (_mismatch(line, each) for each in marks)), ""):
            report(line.where, why)
        elif not _is_excluded(dict(zip(taggers, marks, strict=True)), rules):
            name = line.value.get("id")
            yield name if isinstance(name, str) and name else line.name, text


def _mismatch(document: JsonLine, mark: JsonLine | None) -> str:
    """Why a line of attributes is not that of a document; empty where it is."""
    if mark is None:
        return "its attributes end before it"
    if mark.why:
        return f"{mark.where}: {mark.why}"
    value = mark.value
    if not isinstance(value, dict) or not isinstance(value.get("attributes"), dict):
        return f"{mark.where}: no object with attributes"
    if value.get("id") != document.value.get("id"):
        return f"{mark.where} is of the document {abbreviate(value.get('id'), 40)}"
    return ""


def _is_excluded(marks: dict[str, JsonLine], rules: Sequence[Exclusion]) -> bool:
    return any(
        _score(span) >= rule.score
        for rule in rules
        for span in _spans(marks[rule.tagger].value["attributes"].get(rule.attribute))
    )


def _spans(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _score(span: Any) -> float:
    """The score of a span ``[begin, end, score]``; of anything else one that excludes nothing by itself."""
    score = span[2] if isinstance(span, list) and len(span) == 3 else None
    return float(score) if isinstance(score, int | float) else float("-inf")
