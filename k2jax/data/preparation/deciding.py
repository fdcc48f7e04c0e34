"""Which documents of a task are kept, and why others are not: decided from each text alone, before any is tokenised.

Beside the decisions lie attributes in dolma's layout, a line for every document: what each rule measured and the
language. Bounds can so be looked at, and moved, without reading the texts again.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import gzip
import hashlib
import io
import itertools
import json
from pathlib import Path
import re
from typing import Any, NamedTuple

import numpy as np

from k2jax.config.schema import SourceConfig, StepsConfig
from k2jax.data.cache import key_of
from k2jax.data.preparation.cutting import ReadTask
from k2jax.data.preparation.languages import language_of
from k2jax.data.preparation.normalising import normalised
from k2jax.data.preparation.part_files import RecordedReport, new_part
from k2jax.data.preparation.quality_filters import FILTERS, MeasuredText
from k2jax.data.sources import READING, texts_of

VERSION = 1
"""Of decisions; raised when the same text may be decided otherwise."""
DIGEST_BYTES = 16
EXAMPLES, EXAMPLE_CHARACTERS = 2, 160
EMPTY, LANGUAGE, COPY = "empty", "language", "exact_duplicate"
_RELATIVE = re.compile("\0([0-9]+)\0")


class Decisions(NamedTuple):
    """What was decided of a task.

    Attributes:
        codes: uint8 ``[documents]``: 0 of a document that is kept, else one more than the place of a reason.
        digests: uint8 ``[kept, 16]``, of the texts of documents that are kept.
        dropped: number of documents by reason.
        examples: by reason, names and beginnings of some documents.
    """

    codes: np.ndarray
    digests: np.ndarray
    dropped: dict[str, int]
    examples: dict[str, list[list[str]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deciding:
    """Writes the decisions of a task; it is sent to other processes, and called there.

    Attributes:
        source: settings of the source.
        steps: what is done to documents.
        folder: where decisions are kept.
    """

    source: SourceConfig
    steps: StepsConfig
    folder: Path

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a document may be dropped, in the order in which that is asked."""
        return (EMPTY, *((LANGUAGE,) if self.steps.languages else ()), *self.steps.filters)

    def path(self, task: ReadTask) -> Path:
        """Where the decisions of a task are kept; the attributes have the same name and another end."""
        settings = [getattr(self.source, name) for name in ("kind", "field", "max_documents", "exclude")]
        settings += [self.steps.normalise, self.steps.filters, self.steps.languages, READING, VERSION]
        key = key_of([settings, [part.place for part in task.parts], task.stamps])
        return self.folder / key[:2] / f"{key}.decided.npz"

    def __call__(self, task: ReadTask) -> None:
        """Decides, where that was not done before.

        Raises:
            OSError: the decisions cannot be written.
        """
        if (path := self.path(task)).exists():
            return
        codes, digests, dropped, examples = bytearray(), [], dict.fromkeys(self.reasons, 0), {}
        attributes = path.with_name(path.name.replace(".decided.npz", ".jsonl.gz"))
        with new_part(attributes) as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as lines:
            for name, text, code, values in self._decided(task):
                codes.append(code)
                lines.write(json.dumps({"id": name, "attributes": values}).encode() + b"\n")
                if not code:
                    digests.append(hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest())
                    continue
                reason = self.reasons[code - 1]
                dropped[reason] += 1
                if dropped[reason] <= EXAMPLES:
                    examples.setdefault(reason, []).append([name, text[:EXAMPLE_CHARACTERS]])
        content = io.BytesIO()
        facts = json.dumps({"dropped": dropped, "examples": examples}).encode()
        flat = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
        np.savez(content, codes=np.frombuffer(codes, np.uint8), digests=flat, facts=np.frombuffer(facts, np.uint8))
        with new_part(path) as file:
            file.write(content.getvalue())

    def read(self, task: ReadTask) -> Decisions:
        """The decisions of a task, which were written."""
        with np.load(self.path(task)) as file:
            return Decisions(file["codes"], file["digests"], **json.loads(file["facts"].tobytes()))

    def texts(self, task: ReadTask, report: RecordedReport) -> Iterator[tuple[str, str]]:
        """The documents of a task as they are decided on: without empty ones, and normalised."""
        texts = (pair for pair in texts_of(self.source, task.parts, report) if pair[1])
        return ((name, normalised(text, self.steps.normalise)) for name, text in texts)

    def kept(self, task: ReadTask, report: RecordedReport) -> Iterator[tuple[str, str]]:
        """The documents of a task that are kept: of what was decided here those that ``task.dropped`` does not name."""
        codes = self.read(task).codes
        dropped = np.frombuffer(task.dropped, np.uint32)
        keeps = codes == 0
        keeps[np.flatnonzero(keeps)[dropped]] = False
        return itertools.compress(self.texts(task, report), keeps.tolist())

    def _decided(self, task: ReadTask) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
        """Name, text, code and attributes of each document, up to as many kept ones as the source may have."""
        place, kept = task.parts[0].begin, 0
        for name, text in self.texts(task, RecordedReport()):
            name = _RELATIVE.sub(lambda match: f"{place}+{match[1]}", name)
            code, values = self._judge(text)
            yield name, text, code, values
            kept += not code
            if not code and kept == self.source.max_documents:
                return

    def _judge(self, text: str) -> tuple[int, dict[str, list[list[Any]]]]:
        """The code of a text and its attributes: spans with a value, of which each is the whole text."""
        if not text.strip():
            return 1, {}
        values: dict[str, Any] = {}
        failed = []
        if self.steps.languages:
            language = language_of(text)
            values[f"language__{language}"] = 1.0
            failed += [LANGUAGE] * (language not in self.steps.languages)
        measured = MeasuredText(text)
        for name in self.steps.filters:
            values[f"quality__{name}"] = value = round(float(FILTERS[name].measure(measured)), 6)
            failed += [name] * (not FILTERS[name].passes(value))
        code = 1 + self.reasons.index(failed[0]) if failed else 0
        return code, {name: [[0, len(text), value]] for name, value in values.items()}
