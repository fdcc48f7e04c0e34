"""The texts that are rephrased: of files, or of the exact world of facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import random
from typing import Any

from k2jax.errors import UserError
from k2jax.files.readers import json_lines, whole_file
from k2jax.synthesize.rephrase.fact_world import Fact, person_facts, person_names, problem_facts
from k2jax.synthesize.rephrase.wordings import SOURCES, worded
from k2jax.synthesize.settings import RephraseConfig
from k2jax.synthesize.stages import Record

KNOWLEDGE, MATHEMATICS = "knowledge", "mathematics"
LANGUAGES = tuple(SOURCES)
"""Of the exact world's problems, in turn."""
LONGEST = 1 << 20
"""Characters of a document; a longer one is refused, as its record would travel with all of its rephrasings."""
_ENDS = (".jsonl", ".txt", ".md")


def source_documents(config: RephraseConfig, seed: int) -> list[Record]:
    """The documents of a config, each with ``id``, ``domain``, ``language``, ``text`` and, where known, ``facts``.

    Args:
        config: names a file or a folder, or the sizes of the exact world.
        seed: of the exact world.

    Raises:
        UserError: the path has no usable document.
    """
    if not config.path:
        return [*exact_people(config.documents, config.people, seed), *exact_problems(config.problems, seed)]
    documents: list[Record] = []
    for document in _read(Path(config.path).expanduser()):
        if len(documents) == config.documents:
            break
        documents.append(document)
    if not documents:
        raise UserError(f"{config.path} has no text; name a file or folder of {', '.join(_ENDS)}")
    return documents


def exact_people(documents: int, people: int, seed: int) -> list[Record]:
    """Documents of the exact world, each of so many people of whom all is said."""
    rng = random.Random(f"people {seed}")
    names = person_names(documents * people, rng)
    made = []
    for number in range(documents):
        facts = [
            fact for subject in names[number * people : (number + 1) * people] for fact in person_facts(subject, rng)
        ]
        made.append(_document(f"people/{number}", KNOWLEDGE, "en", facts))
    return made


def exact_problems(problems: int, seed: int) -> list[Record]:
    """Worked problems of the exact world, in its languages by turns."""
    rng = random.Random(f"problems {seed}")
    return [
        _document(f"problems/{number}", MATHEMATICS, LANGUAGES[number % len(LANGUAGES)], problem_facts(rng))
        for number in range(problems)
    ]


def _document(name: str, domain: str, language: str, facts: list[Fact]) -> Record:
    sentences = [worded(fact, SOURCES[language][fact["form"]]) for fact in facts]
    return {"id": name, "domain": domain, "language": language, "text": " ".join(sentences), "facts": facts}


def _read(path: Path) -> Iterator[Record]:
    """The documents of a file, or of a folder's files in the order of their paths."""
    if path.is_dir():
        for file in sorted(one for one in path.rglob("*") if one.suffix in _ENDS and one.is_file()):
            yield from _read(file)
        return
    if path.suffix not in _ENDS or not path.is_file():
        raise UserError(f"{path} is no file of {', '.join(_ENDS)}, and no folder")
    if path.suffix != ".jsonl":
        for name, text in whole_file(path, "", _refuse):
            yield _checked({"id": name, "text": text}, name, name)
        return
    for name, where, value, _ in json_lines(path, _refuse):
        if not isinstance(value, dict):
            _refuse(where, "no JSON object")
        yield _checked(value, name, where)


def _checked(value: dict[str, Any], name: str, where: str) -> Record:
    fields = {"id": name, "domain": KNOWLEDGE, "language": "en", "text": "", **value}
    if not all(isinstance(fields[key], str) for key in ("id", "domain", "language", "text")):
        _refuse(where, "id, domain, language and text must be strings")
    if fields["domain"] not in (KNOWLEDGE, MATHEMATICS):
        _refuse(where, f"domain is {KNOWLEDGE} or {MATHEMATICS}")
    if not fields["text"].strip() or len(fields["text"]) > LONGEST:
        _refuse(where, f"text has to have 1 to {LONGEST:,} characters")
    return {key: fields[key] for key in ("id", "domain", "language", "text")}


def _refuse(where: str, why: str) -> None:
    raise UserError(f"{where}: {why}")
