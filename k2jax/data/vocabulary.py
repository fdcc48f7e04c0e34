"""The tokenizer of a run: from a file, raw bytes, or trained once on the mixture's training documents and cached."""

from __future__ import annotations

from collections.abc import Callable
import heapq
from pathlib import Path

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.cache import cache_root, get_or_build, key_of
from k2jax.data.sources import CorruptRecords, describe, documents
from k2jax.data.split import adjusted_threshold, document_hash, threshold_for
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer, train_bpe

FORMAT = 1
READ_FACTOR = 16  # a source is sampled from its first READ_FACTOR * train_bytes, so that a huge one is not read twice


def prepare_tokenizer(
    config: DataConfig,
    *,
    builder: bool = True,
    wait_seconds: float = 3600.0,
    log: Callable[[str], None] | None = None,
) -> Tokenizer:
    """The configured tokenizer; ``kind=bpe`` is trained on first use, from training documents only.

    Args:
        config: sources, tokenizer and cache.
        builder: whether this process may train; the others wait.
        wait_seconds: how long they wait [s].
        log: gets a line when training starts.

    Raises:
        UserError: when the kind is unknown, the file unusable, or a source is.
    """
    wanted = config.tokenizer
    if wanted.kind == "bytes":
        return byte_tokenizer()
    if wanted.kind == "file":
        if not wanted.path:
            raise UserError("data.tokenizer.kind is file: set data.tokenizer.path to a tokenizer.json or its folder")
        return load_tokenizer(wanted.path)
    if wanted.kind != "bpe":
        raise UserError(f"data.tokenizer.kind is {wanted.kind!r}: give bpe, file or bytes")
    described = {
        "format": FORMAT,
        "vocab": wanted.vocab,
        "train_bytes": wanted.train_bytes,
        "held_out": config.held_out,
        "sources": [describe(name, config.sources[name]) for name in sorted(config.sources)],
    }

    def build(folder: Path) -> None:
        if log:
            log(f"training a byte-level BPE of {wanted.vocab} entries on {', '.join(sorted(config.sources))}")
        train_bpe(training_sample(config), wanted.vocab).save(folder)

    folder = cache_root(config.cache_dir) / "tokenizers" / f"bpe-{key_of(described)}"
    return load_tokenizer(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds))


def training_sample(config: DataConfig) -> list[str]:
    """Training documents, at most ``tokenizer.train_bytes`` in all, in equal shares from every source.

    What a small source leaves of its share goes to the larger ones.
    """
    budget, threshold = config.tokenizer.train_bytes, threshold_for(config.held_out)
    samples = [_sample(name, config.sources[name], budget, threshold) for name in sorted(config.sources)]
    samples.sort(key=lambda texts: sum(map(len, texts)))  # the small first: what they leave is then known
    chosen, left = [], budget
    for i, texts in enumerate(samples):
        taken = _up_to(texts, left // (len(samples) - i))
        left -= sum(map(len, taken))
        chosen += taken
    return [text.decode(errors="ignore") for text in chosen]  # a cut may have gone through a character


def _sample(name: str, source: SourceConfig, budget: int, threshold: int) -> list[bytes]:
    """Training documents of one source with at least ``budget`` bytes, if it has them.

    The documents with the largest hashes are a random sample, and the last that any threshold would hold out.
    """
    heap: list[tuple[int, int, bytes]] = []
    held, read, lowest, highest = 0, 0, 2**64, -1
    report = CorruptRecords()  # the pass that tokenises does the reporting
    for order, (_, text) in enumerate(documents(name, source, report)):
        raw = text.encode()
        code = document_hash(raw)
        lowest, highest = min(lowest, code), max(highest, code)
        heapq.heappush(heap, (code, order, raw))
        held, read = held + len(raw), read + len(raw)
        while held - len(heap[0][2]) >= budget:
            held -= len(heapq.heappop(heap)[2])
        if read > READ_FACTOR * budget and highest >= threshold:
            break
    threshold = adjusted_threshold(threshold, lowest, highest)
    return [raw for code, _, raw in sorted(heap, reverse=True) if code >= threshold]


def _up_to(texts: list[bytes], budget: int) -> list[bytes]:
    """The first texts, ``budget`` bytes of them; the last one is cut."""
    taken, left = [], budget
    for text in texts:
        if left <= 0:
            break
        taken.append(text[:left])
        left -= len(text)
    return taken
