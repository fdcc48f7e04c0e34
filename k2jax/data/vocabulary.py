"""Tokenizer of a run: from a file, of raw bytes, or trained once on the mixture's training documents and cached."""

from __future__ import annotations

from collections.abc import Callable
import heapq
from pathlib import Path

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.cache import cache_root, get_or_build, key_of
from k2jax.data.sources import CorruptRecords, describe, documents
from k2jax.data.split import adjusted_threshold, document_hash, threshold_for
from k2jax.data.stored_folder import local_folder
from k2jax.errors import UserError
from k2jax.text.media import MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD
from k2jax.text.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer, train_bpe

FORMAT = 1
MEDIA_TOKENS = (MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD)
READ_FACTOR = 16  # A source is sampled from its first READ_FACTOR * train_bytes: large sources are not read twice.


def prepare_tokenizer(
    config: DataConfig, *, builder: bool = True, wait_seconds: float = 3600.0, log: Callable[[str], None] | None = None
) -> Tokenizer:
    """Returns the configured tokenizer; ``kind=bpe`` is trained on first use, on training documents only.

    Args:
        config: sources, tokenizer and cache.
        builder: whether this process may train; the others wait.
        wait_seconds: how long they wait [s].
        log: receives a line when training starts.

    Raises:
        UserError: if the file or a source is unusable.
    """
    settings = config.tokenizer
    if settings.kind == "bytes":
        return byte_tokenizer(MEDIA_TOKENS if settings.media else ())
    if settings.kind == "file":
        if not settings.path:
            raise UserError("data.tokenizer.kind is file: set data.tokenizer.path to a tokenizer.json or its folder")
        return load_tokenizer(settings.path)
    described = {
        "format": FORMAT,
        "vocab": settings.vocab,
        "train_bytes": settings.train_bytes,
        "held_out": config.held_out,
        "sources": [describe(name, config.sources[name]) for name in sorted(config.sources)],
    }

    def build(folder: Path) -> None:
        if log:
            log(f"training a byte-level BPE of {settings.vocab} entries on {', '.join(sorted(config.sources))}")
        train_bpe(training_sample(config), settings.vocab).save(folder)

    folder = cache_root(config.cache_dir) / "tokenizers" / f"bpe-{key_of(described)}"
    folder = local_folder(get_or_build(folder, build, builder=builder, wait_seconds=wait_seconds), get_or_build)
    try:
        return load_tokenizer(folder)
    except UserError as error:
        raise UserError(f"delete the folder {folder} to have its tokenizer trained again: {error}") from None


def training_sample(config: DataConfig) -> list[str]:
    """Samples training documents, at most ``tokenizer.train_bytes`` in total, in equal shares from every source.

    The unused share of a small source goes to the larger ones.
    """
    budget, threshold = config.tokenizer.train_bytes, threshold_for(config.held_out)
    samples = [_sample(name, config.sources[name], budget, threshold) for name in sorted(config.sources)]
    samples.sort(key=lambda texts: sum(map(len, texts)))  # small sources first: their unused shares are then known
    chosen, remaining = [], budget
    for i, texts in enumerate(samples):
        taken = _truncate(texts, remaining // (len(samples) - i))
        remaining -= sum(map(len, taken))
        chosen += taken
    return [text.decode(errors="ignore") for text in chosen]  # a cut may have split a character


def _sample(name: str, source: SourceConfig, budget: int, threshold: int) -> list[bytes]:
    """Samples training documents of one source, with at least ``budget`` bytes if it has as many.

    The documents with the largest hashes are a random sample, and a threshold holds them out last.
    """
    heap: list[tuple[int, int, bytes]] = []
    held, read, lowest, highest = 0, 0, 2**64, -1
    report = CorruptRecords()  # The pass that tokenises reports unusable records.
    for order, (_, text) in enumerate(documents(name, source, report)):
        raw = text.encode()
        digest = document_hash(raw)
        lowest, highest = min(lowest, digest), max(highest, digest)
        heapq.heappush(heap, (digest, order, raw))
        held, read = held + len(raw), read + len(raw)
        while held - len(heap[0][2]) >= budget:
            held -= len(heapq.heappop(heap)[2])
        if read > READ_FACTOR * budget and highest >= threshold:
            break
    threshold = adjusted_threshold(threshold, lowest, highest)
    return [raw for digest, _, raw in sorted(heap, reverse=True) if digest >= threshold]


def _truncate(texts: list[bytes], budget: int) -> list[bytes]:
    """Returns the first ``budget`` bytes of the texts; the last text is cut."""
    taken, remaining = [], budget
    for text in texts:
        if remaining <= 0:
            break
        taken.append(text[:remaining])
        remaining -= len(text)
    return taken
