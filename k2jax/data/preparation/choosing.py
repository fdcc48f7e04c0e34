"""The steps between reading and tokenising: which documents of a source are kept, and what became of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
from pathlib import Path
import shutil
import tempfile
from typing import Any

from k2jax.config.schema import CONVERSATIONS, IMAGE_SOURCES, DataConfig, SourceConfig, StepsConfig
from k2jax.data.preparation.comparing import ChosenDocuments, contaminated, describe_sets, near_duplicates
from k2jax.data.preparation.cutting import ReadTask, cut, has_files
from k2jax.data.preparation.deciding import COPY, EXAMPLE_CHARACTERS, EXAMPLES, Deciding
from k2jax.data.preparation.exact_duplicates import copies_of, write_copies
from k2jax.data.preparation.languages import check_languages
from k2jax.data.preparation.pools import TaskPool
from k2jax.data.preparation.progress_lines import shown_progress
from k2jax.data.preparation.quality_filters import FILTERS
from k2jax.data.sources import describe
from k2jax.errors import UserError, nearest

Log = Callable[[str], None]
NEAR, CONTAMINATED = "near_duplicate", "contaminated"


def has_steps(config: DataConfig, name: str) -> bool:
    """Whether documents of a source are chosen before they are tokenised."""
    return config.steps != StepsConfig() and _has_texts(config.sources[name])


def check_steps(config: DataConfig) -> None:
    """Refuses steps that have nothing to work on.

    Raises:
        UserError: no source has texts, one is streamed, or a language is unknown.
    """
    if config.steps == StepsConfig():
        return
    texts = [name for name, source in config.sources.items() if _has_texts(source)]
    if not texts:
        raise UserError("config.data.steps are of documents of text, and no source of config.data.sources has any")
    for name in texts:
        if not has_files(config.sources[name]):
            raise UserError(
                f"config.data.sources.{name} is streamed, and config.data.steps read files: save it as Parquet, and "
                "name that with kind parquet"
            )
    for rule in config.steps.filters:
        if rule not in FILTERS:
            raise UserError(f"config.data.steps.filters has {rule!r}{nearest(rule, list(FILTERS))}")
    if config.steps.languages:
        check_languages(config.steps.languages, "config.data.steps.languages")


def describe_steps(config: DataConfig, name: str) -> dict[str, Any]:
    """What decides which documents of a source are kept, for the key of its shards.

    Raises:
        UserError: a source is missing.
    """
    others = [each for each in _compared(config, name) if each != name]
    described = dataclasses.asdict(config.steps) | {"others": [describe(each, config.sources[each]) for each in others]}
    return described | {"decontaminate": describe_sets(config.steps.decontaminate)}


def choose(
    name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None
) -> tuple[list[ReadTask], dict[str, Any]]:
    """Chooses the documents of a source.

    Args:
        name: of the source.
        config: sources and steps.
        folder: where decisions are kept.
        pool: who decides.
        log: receives lines of progress.

    Returns:
        Its tasks, with the documents that are dropped, and what a manifest says of the steps.

    Raises:
        UserError: a source is missing, or nothing of it is kept.
    """
    work = _Work(name, folder)
    for each in _compared(config, name):
        work.add(each, _decided(each, config, folder, pool, log))
    if config.steps.exact_duplicates:
        work.drop(COPY, work.copies(), work.parts)
    if config.steps.near_duplicates:
        places = folder / "near", folder / "attributes"
        work.drop(NEAR, near_duplicates(work.parts, config.steps.near_duplicates, *places, pool), work.parts)
    if config.steps.decontaminate:
        places = folder / "contamination", folder / "attributes"
        own = [part for part in work.parts if work.is_own(part)]
        work.drop(CONTAMINATED, contaminated(own, config.steps.decontaminate, *places, pool), own)
    return work.tasks(), {"steps": work.facts()}


class _Work:
    """The documents of sources that are compared, and what becomes of those of one source."""

    def __init__(self, name: str, folder: Path):
        self._name, self._folder = name, folder
        self.parts: list[ChosenDocuments] = []
        self._read, self._dropped, self._examples = 0, Counter(), {}

    def is_own(self, part: ChosenDocuments) -> bool:
        """Whether a part is of the source."""
        return part.name.rpartition("-")[0] == self._name

    def add(self, name: str, decided: tuple[list[ReadTask], Deciding]) -> None:
        """Adds the tasks of a source."""
        tasks, decide = decided
        self.parts += [ChosenDocuments(f"{name}-{number:06}", task, decide) for number, task in enumerate(tasks)]
        for decisions in map(decide.read, tasks) if name == self._name else ():
            self._read += len(decisions.codes)
            self._dropped.update(decisions.dropped)
            for reason, found in decisions.examples.items():
                self._examples[reason] = [*self._examples.get(reason, []), *found][:EXAMPLES]

    def copies(self) -> list[list[int]]:
        """Of each part the numbers of documents whose text came before."""
        with _working_folder(self._folder) as work:
            write_copies((part.decide.read(part.task).digests for part in self.parts), work)
            sizes = [len(part.decide.read(part.task).digests) for part in self.parts]
            return [each.tolist() for each in copies_of(work, sizes)]

    def drop(self, reason: str, indices: list[list[int]], of: list[ChosenDocuments]) -> None:
        """Drops documents of some of the parts."""
        found = {part.name: each for part, each in zip(of, indices, strict=True)}
        parts = []
        for part in self.parts:
            each = found.get(part.name, [])
            if each and self.is_own(part):
                self._dropped[reason] += len(each)
                known = self._examples.get(reason, [])
                known += part.examples(each, EXAMPLES - len(known), EXAMPLE_CHARACTERS)
                self._examples[reason] = known
            parts.append(dataclasses.replace(part, task=part.without(each)) if each else part)
        self.parts = parts

    def tasks(self) -> list[ReadTask]:
        """The tasks of the source."""
        return [part.task for part in self.parts if self.is_own(part)]

    def facts(self) -> dict[str, Any]:
        """What a manifest says; UserError where no document is kept."""
        counts = {reason: count for reason, count in self._dropped.items() if count}
        kept = self._read - sum(counts.values())
        if not kept:
            raise UserError(f"source {self._name!r}: config.data.steps keep none of {self._read:,} documents: {counts}")
        return {"read": self._read, "kept": kept, "dropped": counts, "examples": self._examples}


def _compared(config: DataConfig, name: str) -> list[str]:
    """The sources, in the order of their names, whose documents decide on those of a source."""
    texts = [each for each in sorted(config.sources) if _has_texts(config.sources[each])]
    if config.steps.near_duplicates:
        return texts
    return [each for each in texts if each == name or (config.steps.exact_duplicates and each < name)]


def _has_texts(source: SourceConfig) -> bool:
    return source.kind not in (*CONVERSATIONS, *IMAGE_SOURCES, "shards")


def _decided(
    name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None
) -> tuple[list[ReadTask], Deciding]:
    """The tasks of a source up to as many kept documents as it may have, of which all are decided."""
    source = config.sources[name]
    decide, tasks = Deciding(source=source, steps=config.steps, folder=folder), list(cut(name, source))
    kept, most, done = 0, source.max_documents, 0
    results = iter(pool.run(decide, tasks))
    with shown_progress(f"choosing of {name}", tasks, log) as advance:
        for task in tasks:
            next(results)
            done += 1
            advance(task, False)
            if most:
                kept += len(decide.read(task).digests)
                if kept >= most:
                    break
    if hasattr(results, "close"):
        results.close()
    return tasks[:done], decide


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=".sorting-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)
