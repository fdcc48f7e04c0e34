"""Rows of token ids in JSON lines, as ``k2jax.trajectories --out`` exports them, as conversations to train on.

A row has ``tokens``, ``mask`` (what is trained on) and the fingerprint of the ``tokenizer`` that the ids are of: ids of
another vocabulary would train other words without a sign of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from k2jax.config.schema import DataConfig, SourceConfig
from k2jax.data.chat_rendering import checked
from k2jax.data.sources import CorruptRecords
from k2jax.data.tokenised import Tokenised
from k2jax.errors import UserError, abbreviate
from k2jax.files.content import FileRange
from k2jax.files.readers import json_lines
from k2jax.text.media import MEDIA_PAD
from k2jax.text.tokenizer import Tokenizer

_OBSERVED = -1
"""In ``turns``, of a token that the model did not write."""


def tokenised_rows(
    source: SourceConfig, parts: Iterable[FileRange], config: DataConfig, tokenizer: Tokenizer, report: CorruptRecords
) -> Iterator[Tokenised]:
    """The rows of a source; nothing is encoded again.

    Args:
        source: is not used.
        parts: its files, or parts of them.
        config: the ``data`` group of a configuration.
        tokenizer: the vocabulary that the ids must be of.
        report: receives rows that are malformed, of another vocabulary, of a tree, too long for a row or with images.
    """
    for path, begin, end, _ in parts:
        for _, where, record, _ in json_lines(path, report, begin, end):
            try:
                yield _row(record, tokenizer, config.sequence_length)
            except UserError as error:
                report(where, str(error))


def _row(record: Any, tokenizer: Tokenizer, longest: int) -> Tokenised:
    """A row to store; the tokens before the first that the model wrote decide its split."""
    if not isinstance(record, Mapping):
        raise UserError(f"a JSON {type(record).__name__}, not an object")
    if (fingerprint := record.get("tokenizer")) is None:
        raise UserError("it names no tokenizer; export it with k2jax.trajectories --out")
    if fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"it names the tokenizer {abbreviate(fingerprint, 20)}, and the run's is {tokenizer.fingerprint[:12]}...: "
            "train with the tokenizer of the run that exported it"
        )
    if "parent" in record:
        raise UserError("it is a row of a tree, not a sequence; export it with --format=paths, turns or flat")
    tokens_T = _integers(record, "tokens")
    mask_T = _integers(record, "mask", bool).astype(bool)
    if len(mask_T) != len(tokens_T):
        raise UserError(f"mask has {len(mask_T):,} values for {len(tokens_T):,} tokens")
    written_T = _integers(record, "turns") != _OBSERVED if "turns" in record else mask_T
    prompt = record.get("prompt", int(np.argmax(written_T)) if len(written_T) else 0)
    if type(prompt) is not int or not 0 <= prompt <= len(tokens_T):
        raise UserError(f"prompt is {abbreviate(prompt)}, not a number of its tokens")
    if tokenizer.has_special(MEDIA_PAD) and (tokens_T[~mask_T] == tokenizer.special_id(MEDIA_PAD)).any():
        raise UserError("it shows images, which its ids alone do not hold; read the store as kind image_trajectories")
    size = tokens_T.astype(np.int32).nbytes
    return checked(tokens_T, mask_T, tokens_T[:prompt], size, longest, tokenizer)


def _integers(record: Mapping[str, Any], name: str, kind: type = int) -> np.ndarray:
    """A list of integers of up to 63 bits, or of booleans, as int64 ``[tokens]``."""
    values = record.get(name)
    if not isinstance(values, list) or not all(type(value) is kind and abs(value) < 2**62 for value in values):
        raise UserError(f"{name} is {abbreviate(values)}, not a list of {'true or false' if kind is bool else 'ids'}")
    return np.array(values, np.int64)
