"""Tokenising lines, from their files to checked shards, beside one process, processes without joining, and others.

The text is Python's standard library, four files a line; the tokenizer is a BPE of 8,192 entries, trained on a part of
it. Each candidate starts its processes, as a build does. ``datasets.map`` reads, encodes and writes the same texts
(extra ``data``). Nodes of a Ray cluster on this machine, whose start is not timed, need the extra ``ray``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import importlib.util
import json
import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

from k2jax.bench.timing import Row, interleaved, rate_row
from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.preparation.cutting import ReadTask
from k2jax.data.preparation.pools import TaskPool, open_pool
from k2jax.data.preparation.tokenising import Tokenising
from k2jax.data.sources import CorruptRecords, documents
from k2jax.data.split import threshold_for
from k2jax.files.content import FileRange
from k2jax.text.tokenizer import Tokenizer, train_bpe

MEGABYTES, PROCESSES = 24, 2
HELD_OUT = 0.005
_PARALLELISM = "TOKENIZERS_PARALLELISM"


def measure(rounds: int = 10) -> list[Row]:
    """Rows of megabytes a second."""
    with tempfile.TemporaryDirectory() as name, _one_thread():
        bench = _Bench(Path(name))
        candidates: dict[str, Callable[[], Any]] = {
            f"{PROCESSES} processes": lambda: bench.build_by_processes(PROCESSES),
            "1 process": lambda: bench.build_by_processes(1),
            f"{PROCESSES} processes, parts not joined": bench.halves,
        }
        if importlib.util.find_spec("datasets"):
            candidates[f"datasets.map(num_proc={PROCESSES})"] = bench.datasets_map
        with contextlib.ExitStack() as stack:
            if importlib.util.find_spec("ray"):
                from k2jax.data.preparation.ray_pool import RayPool

                cluster = RayPool(f"local:{PROCESSES}")
                stack.callback(cluster.close)
                candidates[f"{PROCESSES} nodes of Ray"] = lambda: bench.build(cluster)
            seconds = interleaved(candidates, rounds, warmup=1)
        rates = {name: bench.bytes / 1e6 / each for name, each in seconds.items()}
        ours, *others = rates
        label = f"tokenise {bench.bytes / 1e6:.0f} MB by {ours}"
        return [rate_row(label, rates[ours], rates[other], "MB/s", other) for other in others]


class _Bench:
    """A corpus of two files in a folder, and ways to tokenise it."""

    def __init__(self, folder: Path):
        self._folder, self._number = folder, 0
        texts = [text for _, text in documents("s", SourceConfig(), CorruptRecords())]
        (folder / "corpus").mkdir()
        lines, size = [], 0
        while size < MEGABYTES * 10**6:
            start = len(lines) * 4 % len(texts)
            lines.append(json.dumps({"text": "\n".join(texts[start : start + 4])}).encode() + b"\n")
            size += len(lines[-1])
        self._files = [folder / "corpus/0.jsonl", folder / "corpus/1.jsonl"]
        for number, path in enumerate(self._files):
            path.write_bytes(b"".join(lines[number::2]))
        self.bytes = size
        self._tokenizer: Tokenizer = train_bpe(texts[::20], 8192)

    def build(self, pool: TaskPool) -> None:
        """Shards in an empty cache."""
        self._number += 1
        source = SourceConfig(kind="jsonl", path=str(self._folder / "corpus"))
        cache = self._folder / f"cache{self._number}"
        config = DataConfig(sources={"s": source}, cache_dir=str(cache), held_out=HELD_OUT)
        prepare_shards("s", config, self._tokenizer, pool=pool)
        shutil.rmtree(cache)

    def build_by_processes(self, count: int) -> None:
        """The same by processes that are started for it."""
        with open_pool(count) as pool:
            self.build(pool)

    def halves(self) -> None:
        """Parts of a file each, which nobody joins: what processes that do not wait for each other reach."""
        self._number += 1
        folder = self._folder / f"parts{self._number}"
        config = DataConfig(sources={"s": SourceConfig(kind="jsonl", path=str(self._folder / "corpus"))})
        threshold = threshold_for(HELD_OUT)
        make = Tokenising(name="s", config=config, tokenizer=self._tokenizer, threshold=threshold, folder=folder)
        tasks = [ReadTask((FileRange(path),), ((0, 0),), path.stat().st_size) for path in self._files]
        with open_pool(PROCESSES) as pool:
            list(pool.run(make, tasks))
        shutil.rmtree(folder)

    def datasets_map(self) -> None:
        """The library's own way, in an empty cache."""
        import datasets

        datasets.disable_progress_bars()
        self._number += 1
        cache, tokenizer = self._folder / f"datasets{self._number}", self._tokenizer

        def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
            return {"ids": [ids.astype("uint16") for ids in tokenizer.encode_batch(batch["text"])]}

        files = [str(path) for path in self._files]
        rows = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(cache))
        options = {"batched": True, "num_proc": PROCESSES, "remove_columns": ["text"], "load_from_cache_file": False}
        rows.map(encode, **options)
        shutil.rmtree(cache)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The tokenizer of this process uses one core, as that of a worker does."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PARALLELISM]
        else:
            os.environ[_PARALLELISM] = before
