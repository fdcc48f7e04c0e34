"""Near duplicates among 200,000 documents of 250 words beside datatrove, and memory at ten times as many.

A tenth of the documents are earlier ones with up to eight words replaced. All times are processor seconds of one
process, and the baseline sees the same documents, or the first of them where it needs a second for a hundred: rates are
compared. It has the same bands, splits at spaces and verifies nothing. Memory is the peak of a process of its own,
which makes its documents when it reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import multiprocessing
from pathlib import Path
import random
import re
import shutil
import tempfile
from typing import Any

import numpy as np
import xxhash

from k2jax.bench.timing import Row, cost_row, interleaved_spent, rate_row
from k2jax.data.duplicates.removal import remove_duplicates
from k2jax.data.duplicates.settings import DuplicateSettings
from k2jax.data.duplicates.shingles import shingles
from k2jax.data.duplicates.signatures import signatures
from k2jax.data.duplicates.words import batches, hash_words
from k2jax.errors import UserError

COUNT, MANY, OF_A_PART, WORDS = 200_000, 2_000_000, 5_000, 250
OF_THE_BASELINE, _SIGNED = 4_000, 20_000
_OF_SPACES = "ace_Arab"  # a language for which datatrove loads no model
_DUPLICATES, _REPLACED = 0.1, 9
_DEVICE = "one core, processor time"


@dataclasses.dataclass(frozen=True)
class MadePart:
    """Documents that are made when they are read: of random words, of which a few are frequent."""

    number: int

    @property
    def key(self) -> str:
        """Names the documents."""
        return f"made {self.number}"

    @property
    def name(self) -> str:
        """Of the file of attributes."""
        return f"{self.number:05d}.jsonl"

    def read(self) -> Iterator[tuple[str, str]]:
        """Names and texts."""
        rng, vocabulary = np.random.default_rng(self.number), _vocabulary()
        texts: list[list[str]] = []
        for number in range(OF_A_PART):
            if number and rng.random() < _DUPLICATES:
                words = list(texts[int(rng.integers(number))])
                for place in rng.integers(WORDS, size=int(rng.integers(_REPLACED))).tolist():
                    words[place] = vocabulary[int(rng.integers(len(vocabulary)))]
            else:
                words = vocabulary[(rng.random(WORDS) ** 3 * len(vocabulary)).astype(np.int64)].tolist()
            texts.append(words)
            yield f"{self.number}-{number}", " ".join(words)


@dataclasses.dataclass(frozen=True)
class _ReadPart:
    """The documents of a part in memory, so that making them is not timed."""

    key: str
    name: str
    documents: list[tuple[str, str]]

    def read(self) -> Iterator[tuple[str, str]]:
        return iter(self.documents)


def measure(rounds: int = 10) -> list[Row]:
    """Rows of documents a processor second, and of memory.

    Args:
        rounds: of the rows of signatures; all else runs once.

    Raises:
        UserError: datatrove is not installed.
    """
    parts = [_ReadPart(part.key, part.name, list(part.read())) for part in map(MadePart, range(COUNT // OF_A_PART))]
    rows = _rates(parts, rounds)
    del parts
    few, many = peak_megabytes(COUNT), peak_megabytes(MANY)
    name = f"peak memory, {MANY:,} documents"
    return [*rows, cost_row(name, many, few, "MB", f"{COUNT:,} documents", device=_DEVICE)]


def _rates(parts: list[_ReadPart], rounds: int) -> list[Row]:
    """Rates of stages and of all of them, of documents that are in memory."""
    baseline = _Datatrove(DuplicateSettings())
    first = [document for part in parts[: _SIGNED // OF_A_PART] for document in part.documents]
    few = first[:OF_THE_BASELINE]
    with tempfile.TemporaryDirectory() as folder:

        def remove() -> None:
            shutil.rmtree(folder)
            remove_duplicates(parts, Path(folder), DuplicateSettings(), attributes=Path(folder))

        counts = len(first), len(few)
        texts = {"ours": lambda: _hash_and_sign(first), "theirs": baseline.first_stage(few)}
        whole = {"ours": remove, "theirs": baseline.all_stages(few)}
        return [
            _rate("signatures of shingles", {"ours": _signing(first), "theirs": baseline.sign(few)}, counts, rounds),
            _rate("signatures of texts", texts, counts, rounds),
            _rate(f"near duplicates of {COUNT:,} documents", whole, (COUNT, len(few)), 1),
        ]


def peak_megabytes(count: int) -> float:
    """Peak of the resident memory of a process that removes the duplicates of so many documents [MB]."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, count))
    process.start()
    theirs.close()
    peak = ours.recv()
    process.join()
    return peak


def _child(pipe: Any, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = [MadePart(number) for number in range(count // OF_A_PART)]
        remove_duplicates(parts, Path(folder), DuplicateSettings(), attributes=Path(folder))
    # The peak of this program: that of getrusage knows the one before it, of which this process is a copy.
    pipe.send(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024)


def _vocabulary(size: int = 20_000) -> np.ndarray:
    rng = random.Random(0)
    return np.array(
        ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(size)], object
    )


def _signing(documents: list[tuple[str, str]]) -> Callable[[], None]:
    sets = [shingles(hash_words([text for _, text in batch])) for batch in batches(documents)]

    def sign() -> None:
        for hashes, ends in sets:
            signatures(hashes, ends)

    return sign


def _hash_and_sign(documents: list[tuple[str, str]]) -> None:
    for batch in batches(documents):
        signatures(*shingles(hash_words([text for _, text in batch])))


def _rate(name: str, candidates: dict[str, Callable[[], Any]], counts: tuple[int, int], rounds: int) -> Row:
    """Documents a processor second of ours and of the baseline, which have so many."""
    spent = [processor for _, processor in interleaved_spent(candidates, rounds, warmup=0).values()]
    ours, theirs = (count / seconds for count, seconds in zip(counts, spent, strict=True))
    return rate_row(name, ours, theirs, "documents/s", "datatrove", device=_DEVICE)


class _SplitAtSpaces:
    """Words for datatrove: what it takes for a language needs other packages, and longer."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


class _Datatrove:
    """datatrove's MinHash with the bands of our settings, and words between spaces."""

    def __init__(self, settings: DuplicateSettings):
        try:
            from datatrove.pipeline.dedup import minhash
            from datatrove.utils.logging import logger
        except ImportError:
            raise UserError("the baseline is datatrove, which is not installed: pip install datatrove") from None
        logger.remove()
        self._minhash = minhash
        self._config = minhash.MinhashConfig(num_buckets=settings.bands, hashes_per_bucket=settings.rows)

    def sign(self, documents: list[tuple[str, str]]) -> Callable[[], None]:
        """Signs sets of shingles that are there."""
        stage = self._stage("unused")
        sets = [stage.get_shingles(text) for _, text in documents]
        return lambda: [stage.get_signature(each) for each in sets]

    def first_stage(self, documents: list[tuple[str, str]]) -> Callable[[], None]:
        """Writes the signatures of texts."""

        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                self._sign_all(folder, documents)

        return run

    def all_stages(self, documents: list[tuple[str, str]]) -> Callable[[], None]:
        """Signatures, buckets and clusters."""

        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                self._sign_all(folder, documents)
                pairs, removed = f"{folder}/pairs", f"{folder}/removed"
                buckets = self._minhash.MinhashDedupBuckets(f"{folder}/signatures", pairs, config=self._config)
                for bucket in range(self._config.num_buckets):
                    buckets.run(None, bucket, self._config.num_buckets)
                self._minhash.MinhashDedupCluster(pairs, removed, config=self._config).run(None, 0, 1)

        return run

    def _stage(self, folder: str) -> Any:
        stage = self._minhash.MinhashDedupSignature(folder, config=self._config, language=_OF_SPACES)
        stage.word_tokenizer = _SplitAtSpaces()
        stage._hash_func = lambda text: xxhash.xxh64_intdigest(text.encode())  # its own fails with xxhash 4
        return stage

    def _sign_all(self, folder: str, documents: list[tuple[str, str]]) -> None:
        from datatrove.data import Document

        made = (Document(text=text, id=name) for name, text in documents)
        self._stage(f"{folder}/signatures").run(made, 0, 1)
