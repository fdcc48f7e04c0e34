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
from k2jax.data.preparation.cutting import Task, cut, has_files
from k2jax.data.preparation.deciding import COPY, EXAMPLES, Deciding
from k2jax.data.preparation.exact_duplicates import copies_of, write_copies
from k2jax.data.preparation.languages import check_languages
from k2jax.data.preparation.pools import TaskPool
from k2jax.data.preparation.progress_lines import shown_progress
from k2jax.data.sources import describe
from k2jax.errors import UserError

Log = Callable[[str], None]


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
    if config.steps.languages:
        check_languages(config.steps.languages, "config.data.steps.languages")


def describe_steps(config: DataConfig, name: str) -> dict[str, Any]:
    """What decides which documents of a source are kept, for the key of its shards.

    Raises:
        UserError: a source is missing.
    """
    steps = dataclasses.asdict(config.steps)
    if config.steps.exact_duplicates:
        before = [each for each in sorted(config.sources) if each < name and _has_texts(config.sources[each])]
        steps["before"] = [describe(each, config.sources[each]) for each in before]
    return steps


def choose(
    name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None
) -> tuple[list[Task], dict[str, Any]]:
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
        UserError: a source is missing.
    """
    tasks, decide = _decided(name, config, folder, pool, log)
    read = [decide.read(task) for task in tasks]
    dropped, examples = Counter(), {}
    for each in read:
        dropped.update(each.dropped)
        for reason, found in each.examples.items():
            examples[reason] = [*examples.get(reason, []), *found][:EXAMPLES]
    documents = sum(len(each.codes) for each in read)
    if config.steps.exact_duplicates:
        sizes = [len(each.digests) for each in read]
        tasks, dropped[COPY] = _without_copies(name, config, folder, pool, log, tasks, sizes)
    if documents == sum(dropped.values()):
        raise UserError(f"source {name!r}: config.data.steps keep none of {documents:,} documents: {dict(dropped)}")
    counts = {reason: dropped[reason] for reason in (*decide.reasons, COPY) if dropped[reason]}
    facts = {"read": documents, "kept": documents - sum(counts.values()), "dropped": counts, "examples": examples}
    return tasks, {"steps": facts}


def _has_texts(source: SourceConfig) -> bool:
    return source.kind not in (*CONVERSATIONS, *IMAGE_SOURCES)


def _decided(
    name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None
) -> tuple[list[Task], Deciding]:
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


def _without_copies(
    name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None, tasks: list[Task], sizes: list[int]
) -> tuple[list[Task], int]:
    """The tasks with their copies of texts that came before, in sources of names before this one or in it."""
    before = [each for each in sorted(config.sources) if each < name and _has_texts(config.sources[each])]
    others = [(decide, task) for each in before for task, decide in _pairs(each, config, folder, pool, log)]
    with _working_folder(folder) as work:
        decide = Deciding(source=config.sources[name], steps=config.steps, folder=folder)
        everything = [*others, *((decide, task) for task in tasks)]
        other_sizes = [len(decide.read(task).digests) for decide, task in others]
        write_copies((decide.read(task).digests for decide, task in everything), work)
        copies = list(copies_of(work, [sum(other_sizes), *sizes]))[1:]
    tasks = [task._replace(dropped=each) for task, each in zip(tasks, copies, strict=True)]
    return tasks, sum(len(each) for each in copies) // 4


def _pairs(name: str, config: DataConfig, folder: Path, pool: TaskPool, log: Log | None) -> list[tuple[Task, Deciding]]:
    tasks, decide = _decided(name, config, folder, pool, log)
    return [(task, decide) for task in tasks]


@contextlib.contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=".sorting-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)
