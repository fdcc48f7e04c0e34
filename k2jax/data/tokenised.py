"""What a source's records become before they are stored: numbers, and what the split and the figures need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from k2jax.data.sources import CorruptRecords
from k2jax.data.split import document_hash
from k2jax.errors import UserError
from k2jax.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 4 * 2**20  # text that is encoded at a time: enough to use all cores, and little memory


class Tokenised(NamedTuple):
    """A record of a source.

    Attributes:
        values: integers ``[tokens]``, what is stored: token ids, or for conversations ids with a mark.
        size: UTF-8 bytes of the record's text.
        digest: decides its split.
        text: its text, for the compressors that it is compared with; None for conversations.
    """

    values: np.ndarray
    size: int
    digest: int
    text: bytes | None = None


Reader = Callable[[CorruptRecords], Iterator[Tokenised]]
"""Reads a source from its beginning, and reports unusable records to its argument."""


def tokenised_texts(name: str, named_texts: Iterator[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[Tokenised]:
    """Encodes texts to ``[BOS] tokens [EOS]``, many at a time.

    Args:
        name: name of the source, for errors.
        named_texts: pairs of a document's name and text.
        tokenizer: the vocabulary.

    Raises:
        UserError: if the tokenizer has left its vocabulary.
    """
    for texts in _batches(named_texts):
        for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
            raw = text.encode()
            values = np.concatenate([[tokenizer.bos], ids, [tokenizer.eos]]).astype(np.int64)
            if (wrong := outside_vocabulary(values, tokenizer)) is not None:
                raise UserError(
                    f"source {name!r}: the tokenizer gave the id {wrong} for a text, outside [0, "
                    f"{tokenizer.vocab_size}): choose another one with data.tokenizer"
                )
            yield Tokenised(values, len(raw), document_hash(raw), raw)


def marked(ids: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """The values that are stored, int64 ``[tokens]``, of token ids and of whether each is trained on."""
    return 2 * np.asarray(ids, np.int64) + np.asarray(trained, np.bool_)


def outside_vocabulary(ids: np.ndarray, tokenizer: Tokenizer) -> int | None:
    """The first id that the vocabulary does not have, for which a model has no embedding; None where it has all."""
    wrong = ids[(ids < 0) | (ids >= min(tokenizer.vocab_size, 2**31))]  # tokens are read as int32
    return int(wrong[0]) if len(wrong) else None


def _batches(named_texts: Iterator[tuple[str, str]]) -> Iterator[list[str]]:
    """Groups texts into batches of about ``BATCH_CHARACTERS`` characters."""
    texts, size = [], 0
    for _, text in named_texts:
        texts.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts
