"""What becomes of a task: its records as numbers, a pure function of the task, the tokenizer and the configuration."""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import itertools
from pathlib import Path
from typing import Any, TypeVar

from k2jax.config.schema import CONVERSATIONS, DataConfig, SourceConfig
from k2jax.data.cache import key_of
from k2jax.data.chat_rendering import tokenised_chats, tokenised_trajectories
from k2jax.data.manifest import FORMAT, shard_dtype
from k2jax.data.preparation.cutting import LINES, ReadTask
from k2jax.data.preparation.deciding import Deciding
from k2jax.data.preparation.part_files import PART_FORMAT, PartWriter, RecordedReport, new_part
from k2jax.data.sources import READING, texts_of
from k2jax.data.token_rows import tokenised_rows
from k2jax.data.tokenised import Tokenised, tokenised_texts
from k2jax.files.content import FileRange, count_lines
from k2jax.text.tokenizer import Tokenizer

Item = TypeVar("Item")
CHAT_FORMAT = 3  # number of the encoding of conversations, raised when tokens or split of the same record change


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenising:
    """Writes the part of a task; it is sent to other processes, and called there.

    Attributes:
        name: of the source.
        config: of the data.
        tokenizer: the vocabulary.
        threshold: documents with smaller digests are held out.
        folder: where parts are kept.
        decide: what chooses the documents; None keeps all.
    """

    name: str
    config: DataConfig
    tokenizer: Tokenizer
    threshold: int
    folder: Path
    decide: Deciding | None = None

    @property
    def source(self) -> SourceConfig:
        """The source's settings."""
        return self.config.sources[self.name]

    @property
    def is_marked(self) -> bool:
        """Whether values are ids with a mark."""
        return self.source.kind in CONVERSATIONS

    def path(self, task: ReadTask) -> Path:
        """Where the part of a task is kept: by all that decides what is in it."""
        places = [part.place for part in task.parts]
        key = key_of([self.settings(), places, task.stamps, task.dropped.hex()])
        return self.folder / key[:2] / f"{key}.part"

    def settings(self) -> dict[str, Any]:
        """What decides what is in a part, beside the task."""
        source, tokenizer = self.source, self.tokenizer
        settings = {key: getattr(source, key) for key in ("kind", "field", "max_documents", "filters", "exclude")}
        settings |= {"formats": [PART_FORMAT, FORMAT, READING], "threshold": str(self.threshold)}
        settings["tokenizer"] = [tokenizer.encoding, tokenizer.bos, tokenizer.eos]
        if self.decide:
            settings["steps"] = dataclasses.asdict(self.config.steps)
        if self.is_marked:
            settings["chat"] = [CHAT_FORMAT, self.config.chat_format, self.config.sequence_length]
        return settings

    def __call__(self, task: ReadTask) -> None:
        """Writes the part of a task.

        Raises:
            UserError: the tokenizer cannot encode a text.
            OSError: it cannot be written.
        """
        report = RecordedReport()
        dtype = shard_dtype(self.tokenizer.vocab_size, self.is_marked)
        with new_part(self.path(task)) as file:
            writer = PartWriter(file, dtype, self.threshold, report)
            for document in self._documents(task, report):
                writer.add(document)
            writer.finish({"lines": [self._lines(part) for part in task.parts]})

    def _lines(self, part: FileRange) -> int:
        return 0 if part.end is None or self.source.kind not in LINES else count_lines(part)

    def _documents(self, task: ReadTask, report: RecordedReport) -> Iterator[Tokenised]:
        """The documents of a task, no more than the source may have."""
        most = self.source.max_documents or None
        if not self.is_marked:
            if self.decide:
                texts = self.decide.kept(task, report)
            else:
                texts = (pair for pair in texts_of(self.source, task.parts, report) if pair[1])
            return tokenised_texts(self.name, itertools.islice(_counted(texts, report), most), self.tokenizer)
        read = {"chat": tokenised_chats, "token_rows": tokenised_rows}.get(self.source.kind, tokenised_trajectories)
        conversations = read(self.source, task.parts, self.config, self.tokenizer, report)
        return itertools.islice(_counted(conversations, report), most)


def _counted(items: Iterator[Item], report: RecordedReport) -> Iterator[Item]:
    """The items; what is reported before the next of them is reported behind this one."""
    for item in items:
        report.documents += 1
        yield item
