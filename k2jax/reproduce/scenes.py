"""Pictures of a few shapes with their descriptions, for studies: square cells, each a feature of the tower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
import zlib

import numpy as np
from PIL import Image

from k2jax.drawings.canvas import CELL, Split, draw_shapes, kind_of_shape
from k2jax.tasks.pictures.dataset import data_url

BETWEEN = ","


class Scene(NamedTuple):
    """A picture and what it shows.

    Attributes:
        image: in RGB.
        things: colour and shape of each, such as ``red circle``, from left to right, the upper row first.
    """

    image: Image.Image
    things: tuple[str, ...]

    @property
    def description(self) -> str:
        """The things, one after the other."""
        return BETWEEN.join(self.things)


def draw_scene(seed: int, index: int, split: Split = "train", cells: int = 2) -> Scene:
    """A picture with a shape in one cell or more, of three kinds and four colours, as a function of the arguments.

    Args:
        seed: of the data set.
        index: number of the picture.
        split: the same numbers are other pictures in the other split.
        cells: of a side, which has ``CELL`` pixels for each.
    """
    rng = np.random.default_rng([seed, index, zlib.crc32(f"scene {split}".encode())])
    kinds = [kind_of_shape(rng) for _ in range(rng.integers(1, cells**2 + 1))]
    image, shapes = draw_shapes(rng, (cells * CELL, cells * CELL), kinds)
    in_order = sorted(shapes, key=lambda shape: (shape.box[1] // CELL, shape.box[0] // CELL))
    return Scene(image, tuple(f"{shape.colour} {shape.shape}" for shape in in_order))


def conversation(content: Sequence[Any], answer: str) -> dict[str, Any]:
    """A record of a question and its answer, for sources of the kinds ``chat`` and ``image_chat``."""
    question = content[0]["text"] if [part["type"] for part in content] == ["text"] else list(content)
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def captions(seed: int, count: int, cells: int = 2) -> Iterator[dict[str, Any]]:
    """Conversations without a question, of a picture and its description."""
    for index in range(count):
        scene = draw_scene(seed, index, cells=cells)
        yield conversation([{"type": "image", "image": data_url(scene.image)}], scene.description)
