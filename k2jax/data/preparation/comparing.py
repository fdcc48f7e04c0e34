"""Steps that compare documents with each other or with evaluation sets, over the documents that other steps keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import glob
import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from k2jax.data.preparation.cutting import ReadTask
from k2jax.data.preparation.deciding import Deciding
from k2jax.data.preparation.part_files import RecordedReport
from k2jax.data.preparation.pools import TaskPool


@dataclasses.dataclass(frozen=True)
class ChosenDocuments:
    """The documents of a task that are kept so far; it can be sent to other processes, and read there again.

    Attributes:
        name: of the file that attributes of these documents are written to.
        task: where they are.
        decide: what keeps them.
    """

    name: str
    task: ReadTask
    decide: Deciding

    @property
    def key(self) -> str:
        """Of the documents: equal ones have one key."""
        dropped = hashlib.sha256(self.task.dropped).hexdigest()[:16]
        return f"{self.decide.path(self.task).name.partition('.')[0]}-{dropped}"

    def read(self) -> Iterator[tuple[str, str]]:
        """Names and texts."""
        return self.decide.kept(self.task, RecordedReport())

    def without(self, indices: Sequence[int]) -> ReadTask:
        """The task without some of these documents as well."""
        before = np.frombuffer(self.task.dropped, np.uint32)
        kept = np.setdiff1d(np.arange(len(self.decide.read(self.task).digests), dtype=np.uint32), before)
        dropped = np.union1d(before, kept[np.array(indices, np.int64)])
        return self.task._replace(dropped=dropped.astype(np.uint32).tobytes())

    def examples(self, indices: Sequence[int], count: int, characters: int) -> list[list[str]]:
        """Names and beginnings of the first ``count`` of some documents."""
        wanted = set(indices[:count])
        texts = enumerate(self.read()) if wanted else ()
        return [[name, text[:characters]] for number, (name, text) in texts if number in wanted]


def near_duplicates(
    parts: Sequence[ChosenDocuments], threshold: float, folder: Path, attributes: Path, pool: TaskPool
) -> list[list[int]]:
    """Of each part the numbers of documents that are verified duplicates of one that is kept.

    Args:
        parts: of all sources, in order.
        threshold: least Jaccard similarity.
        folder: for work, which is kept.
        attributes: folder for scores and keepers.
        pool: who does it.

    Raises:
        UserError: the threshold is out of range, or rensa is not installed.
    """
    from k2jax.data.duplicates.removal import remove_duplicates
    from k2jax.data.duplicates.settings import DuplicateSettings

    settings = DuplicateSettings(threshold=threshold)
    report = remove_duplicates(parts, folder, settings, pool.run, attributes=attributes)
    return [report.indices(number) for number in range(len(parts))]


def contaminated(
    parts: Sequence[ChosenDocuments], against: Sequence[str], folder: Path, attributes: Path, pool: TaskPool
) -> list[list[int]]:
    """Of each part the numbers of documents that hold an item of an evaluation set.

    Args:
        parts: of a source.
        against: evaluation sets; see ``contamination.evaluation_items.read_items``.
        folder: for work, which is kept.
        attributes: folder for the items that are found.
        pool: who does it.

    Raises:
        UserError: a set has no questions.
    """
    from k2jax.data.contamination.evaluation_items import read_items
    from k2jax.data.contamination.gram_index import write_index
    from k2jax.data.contamination.marking import TAGGER, mark_contamination
    from k2jax.data.contamination.matching import ContaminationSettings
    from k2jax.data.duplicates.attributes import attribute_path

    index = write_index([item for each in against for item in read_items(each)], folder)
    mark_contamination(parts, index, folder, ContaminationSettings(), pool.run, attributes=attributes)
    found = []
    for part in parts:
        with gzip.open(attribute_path(attributes, TAGGER, part.name)) as lines:
            found.append([number for number, line in enumerate(lines) if json.loads(line)["attributes"]])
    return found


def describe_sets(against: Sequence[str]) -> list[Any]:
    """What decides the content of evaluation sets: their names, and size and time of change of their files."""
    described = []
    for each in against:
        place = Path(each).expanduser()
        names = [str(path) for path in place.rglob("*")] if place.is_dir() else glob.glob(str(place))
        files = [(name, os.stat(name)) for name in sorted(names)]
        described.append([each, [[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]])
    return described
