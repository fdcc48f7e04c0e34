"""The images that a path of a token tree shows the model, among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k2jax.text.media_reading import NO_PAD, MediaReader
from k2jax.trajectory import Trajectory
from k2jax.trajectory.answers import is_answer


def path_media(trajectory: Trajectory, path: Sequence[int], reader: MediaReader | None) -> tuple[Any, ...]:
    """The images of a path's observations, where they stand among the tokens of the path.

    Args:
        trajectory: its messages hold their images.
        path: nodes, from the root on.
        reader: reads the images; None is a model of text alone, which is shown none.

    Raises:
        UserError: an image cannot be read, or is not the one for which the recorded tokens stand.
    """
    if reader is None:
        return ()
    reading, tokens = reader.start(), []
    for index in path:
        node = trajectory.nodes[index]
        if is_answer(trajectory, index):
            tokens += [NO_PAD] * len(node.tokens)
            continue
        if node.message is not None:  # tools and generation prompts have none
            reading.read(node.message)
        tokens += node.tokens.tolist()
    return reading.place(tokens)
