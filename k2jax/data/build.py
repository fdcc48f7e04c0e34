"""From a configuration to everything a training run reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import json

from k2jax.config.schema import DataConfig
from k2jax.data.build_shards import prepare_shards
from k2jax.data.loader import DataLoader, HeldOut, check_shares
from k2jax.data.packing import RowSource, check_length
from k2jax.data.shards import Shards
from k2jax.data.vocabulary import prepare_tokenizer
from k2jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Data:
    """What training reads.

    Attributes:
        tokenizer: text to tokens and back.
        loader: training batches by step.
        held_out: validation batches.
        manifests: by source, what its folder of shards holds: counts, held-out statistics, skipped records.
        fingerprint: changes when the tokenizer or any token of the corpus does, and with nothing else.
    """

    tokenizer: Tokenizer
    loader: DataLoader
    held_out: HeldOut
    manifests: dict[str, dict]
    fingerprint: str


def build(
    config: DataConfig,
    *,
    batch_size: int,
    seed: int,
    steps: int,
    part: Sequence[int] | None = None,
    builder: bool = True,
    log: Callable[[str], None] | None = None,
    wait_seconds: float = 3600.0,
) -> Data:
    """Prepares tokenizer and shards, or finds them in the cache, and plans the run.

    One process builds; the others wait for its folders.

    Args:
        config: the ``data`` part of a configuration.
        batch_size: rows per optimizer step over all processes.
        seed: decides the order of rows.
        steps: optimizer steps; the data must last for them.
        part: numbers of a batch's rows that this process reads, all by default; see ``DataLoader``.
        builder: whether this process builds what is missing.
        log: gets a line of progress now and then.
        wait_seconds: how long the other processes wait for the builder, per folder [s].

    Raises:
        UserError: for anything a user can mend: configuration, sources, corrupt records, cache, damaged shards, data
            that do not last.
    """
    check_shares(config.sources)  # refuse before the long work
    check_length(config.sequence_length)
    share = {"builder": builder, "wait_seconds": wait_seconds, "log": log}
    tokenizer = prepare_tokenizer(config, **share)
    shards = {name: prepare_shards(name, config, tokenizer, **share) for name in sorted(config.sources)}
    length = config.sequence_length
    rows = {name: RowSource(source.train, length) for name, source in shards.items()}
    loader = DataLoader(rows, config.sources, batch_size=batch_size, seed=seed, steps=steps, part=part)
    held_out = HeldOut({name: source.held_out for name, source in shards.items()}, length, part=part)
    manifests = {name: source.manifest for name, source in shards.items()}
    return Data(tokenizer, loader, held_out, manifests, _fingerprint(tokenizer, shards))


def _fingerprint(tokenizer: Tokenizer, shards: dict[str, Shards]) -> str:
    """Of contents, not of paths or dates: a corpus may move to another machine between two parts of a run."""
    contents = {name: source.manifest["files"] for name, source in shards.items()}
    parts = [tokenizer.fingerprint, tokenizer.bos, tokenizer.eos, contents]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
