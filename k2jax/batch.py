"""The one batch type from pretraining to tree reinforcement learning.

A row holds packed documents or flattened trajectory trees. One vector, ``exit``, covers every mask: token i may attend
to token j iff ``j <= i < exit[j]``. Losses gather the predicting hidden state by ``parent``; nothing rolls labels.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from flax import struct
import jax
from jax import Array
import numpy as np

NO_EXPERTS = -1
"""Stands in the place of an expert where the router chooses."""


@struct.dataclass
class PackedBatch:
    """Rows of packed sequences, ``B`` rows of ``S`` tokens; indices are within the row.

    Attributes:
        tokens: int32 ``[B, S]``, 0 on padding.
        positions: int32 ``[B, S]``, rotary position, restarting at 0 per document; 0 on padding.
        exit: int32 ``[B, S]``, the index at which the subtree of the token ends; on padding the token's own index.
        parent: int32 ``[B, S]``, index of the token whose hidden state predicts this one (smaller than its own); -1 at
            the first token of a document or fragment and on padding.
        targets: a pytree that only the loss reads. Its leaves are ``[B, S]``, about each token as a target, or
            ``[B, N]`` with N < S, about each turn or branch of the row; all 0 on padding. Pretraining has
            ``{"weights": float32 [B, S]}``, 0 on prompts and on tokens without a parent.
        experts: int16 ``[B, S, expert layers, active experts]``, the experts that each token goes to, or NO_EXPERTS
            where the router chooses; None where it always does.
        patches: images and clips of the rows. Of a row ``[S]`` that is in no batch yet, the list of their
            ``data.images.packing.PatchChunk``, over which ``media`` counts features. None without images, and in the
            decoder.
        media: int32 ``[B, S]``, the group of ``patches``, counted over all their rows, whose feature stands for the
            token's embedding; -1 for text. None without images.
    """

    tokens: Array | np.ndarray
    positions: Array | np.ndarray
    exit: Array | np.ndarray
    parent: Array | np.ndarray
    _: dataclasses.KW_ONLY
    targets: Any
    experts: Array | np.ndarray | None = None
    patches: PatchBatch | list[Any] | None = None
    media: Array | np.ndarray | None = None


@struct.dataclass(kw_only=True)
class PatchBatch:
    """Rows of patches of images and clips, ``R`` rows of ``P`` patches; indices are within the row.

    A chunk is an image, or consecutive frames of a clip. Its patches are contiguous, in the order (row of 2 x 2 groups,
    column of groups, frame, row in the group, column in the group): four neighbours are a group, and the groups of one
    place follow one another frame by frame. P is a multiple of 4.

    Attributes:
        pixels: float32 ``[R, P, 3 * patch * patch]``, colour by colour, in [-1, 1].
        start: int32 ``[R, P]``, first patch of the chunk; on padding the patch's own index.
        exit: int32 ``[R, P]``, one past its last patch; on padding the patch's own index.
        y: int32 ``[R, P]``, row of the patch in its frame; 0 on padding.
        x: int32 ``[R, P]``, column of the patch in its frame; 0 on padding.
        height: int32 ``[R, P]``, patches of a column of the frame; 1 on padding.
        width: int32 ``[R, P]``, patches of a row of the frame; 1 on padding.
        time: int32 ``[R, P]``, 0 in a chunk of one frame, else the number of the frame in its chunk, from 1.
        frames: int32 ``[R, P / 4]``, frames of the group's chunk; 1 on padding.
    """

    pixels: Array | np.ndarray
    start: Array | np.ndarray
    exit: Array | np.ndarray
    y: Array | np.ndarray
    x: Array | np.ndarray
    height: Array | np.ndarray
    width: Array | np.ndarray
    time: Array | np.ndarray
    frames: Array | np.ndarray


class TokenScores(NamedTuple):
    """What the model says of every token of a batch as a target, in float32; 0 where a token has no parent.

    Attributes:
        logprob: ``[B, S]``, log-probability of the token under softmax(logits / temperature) [nats].
        entropy: ``[B, S]``, entropy of that distribution [nats]; None where the loss does not ask for it.
    """

    logprob: Array
    entropy: Array | None = None


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
    start = 0
    for document in documents:
        end = start + len(document)
        if end > length:
            raise ValueError(f"documents of {sum(map(len, documents))} tokens do not fit a row of {length}")
        tokens[start:end] = document
        positions[start:end] = np.arange(len(document))
        exit_[start:end] = end
        parent[start + 1 : end] = np.arange(start, end - 1)
        weights[start + 1 : end] = 1.0
        start = end
    return PackedBatch(tokens=tokens, positions=positions, exit=exit_, parent=parent, targets={"weights": weights})


def stack_rows(rows: list[PackedBatch]) -> PackedBatch:
    """Stacks rows ``[S]`` (and ``[N]``) into a batch ``[B, S]`` (and ``[B, N]``) of NumPy arrays."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
