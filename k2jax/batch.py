"""The one batch type from pretraining to tree reinforcement learning.

A row holds packed documents or flattened trajectory trees. One vector, ``exit``, covers every mask: token i may attend
to token j iff ``j <= i < exit[j]``. Losses gather the predicting hidden state by ``parent``; nothing rolls labels.
"""

from __future__ import annotations

from flax import struct
from jax import Array
import numpy as np


@struct.dataclass
class PackedBatch:
    """Rows of packed sequences; every field is ``[batch, sequence]`` and indices are within the row.

    Attributes:
        tokens: int32, 0 on padding.
        positions: int32, rotary position, restarting at 0 per document; 0 on padding.
        exit: int32, the index at which the subtree of the token ends; equal to the token's own index on padding.
        parent: int32, index of the token whose hidden state predicts this one (smaller than its own); -1 at the first
            token of a document or fragment and on padding.
        weights: float32, loss weight of the token as a target; 0 on padding, prompts and tokens without a parent.
    """

    tokens: Array | np.ndarray
    positions: Array | np.ndarray
    exit: Array | np.ndarray
    parent: Array | np.ndarray
    weights: Array | np.ndarray


def pack_row(documents: list[np.ndarray], length: int) -> PackedBatch:
    """One row ``[length]`` from whole documents or fragments of documents, in order, padded at the end.

    A fragment that continues a document begins with a repeat of its predecessor's last token: like any first token it
    has no parent and no weight, it only gives context.

    Args:
        documents: int token arrays; together at most ``length`` tokens.
        length: tokens in the row.

    Returns:
        A PackedBatch of NumPy arrays without the batch dimension.

    Raises:
        ValueError: when the documents do not fit.
    """
    tokens, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
    parent = np.full(length, -1, np.int32)
    exit_ = np.arange(length, dtype=np.int32)
    weights = np.zeros(length, np.float32)
    at = 0
    for document in documents:
        end = at + len(document)
        if end > length:
            raise ValueError(f"documents of {sum(map(len, documents))} tokens do not fit a row of {length}")
        tokens[at:end] = document
        positions[at:end] = np.arange(len(document))
        exit_[at:end] = end
        parent[at + 1 : end] = np.arange(at, end - 1)
        weights[at + 1 : end] = 1.0
        at = end
    return PackedBatch(tokens=tokens, positions=positions, exit=exit_, parent=parent, weights=weights)


def stack_rows(rows: list[PackedBatch]) -> PackedBatch:
    """Stacks rows ``[sequence]`` into a batch ``[batch, sequence]``."""
    fields = PackedBatch.__dataclass_fields__
    return PackedBatch(**{name: np.stack([np.asarray(getattr(row, name)) for row in rows]) for name in fields})
