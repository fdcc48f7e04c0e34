"""Parameters that a run starts from: a checkpoint's, read straight onto the run's mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.sharding import PartitionSpec
import numpy as np

from k2jax.convert.loading import open_pretrained
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.model.vision import multimodal_specs
from k2jax.parallel.layout import VISION, Layout
from k2jax.parallel.resharding import from_logical, logical_partition
from k2jax.params import Specs, map_specs, named_specs


def pretrained_params(init_from: str, layout: Layout, initial: Any = None) -> tuple[Any, str]:
    """The parameters of a checkpoint argument in float32, as the layout stores them, and a description of the source.

    Each process reads what its devices hold of the logical form; the devices convert it to the stored form. A model
    with vision may start from a decoder alone.

    Args:
        init_from: a checkpoint argument.
        layout: of the run.
        initial: parameters as the layout stores them, of which the tower and the projector stay where the checkpoint
            has none.

    Raises:
        UserError: it cannot be read, or is another model than the layout's; then no weight is read.
    """
    opened = open_pretrained(init_from)
    kept = {VISION: initial[VISION]} if VISION in layout.logical and not opened.model.vision.layers else {}
    layout = layout.text if kept else layout
    given = multimodal_specs(opened.model) if VISION in layout.logical else model_specs(opened.model)
    _check_shapes(init_from, given, layout.logical)
    logical = opened.params(layout.shardings(logical_partition(layout)), np.float32)
    convert = jax.jit(functools.partial(from_logical, layout), out_shardings=layout.shardings(layout.storage))
    return {**convert(logical), **kept}, opened.origin


def pretrained_tower(init_tower_from: str, layout: Layout) -> tuple[Any, str]:
    """The tower of a checkpoint argument in float32, as the layout stores it, and a description of the source.

    The projector is left out: its width is that of the decoder with which the tower was trained.

    Args:
        init_tower_from: a checkpoint argument.
        layout: of the run.

    Raises:
        UserError: it cannot be read, has no vision, or another tower than the layout's; then no weight is read.
    """
    opened = open_pretrained(init_tower_from)
    if not opened.model.vision.layers:
        raise UserError(f"init_tower_from {init_tower_from} is a model without vision")
    given, wanted = multimodal_specs(opened.model)[VISION], layout.logical[VISION]
    _check_shapes(init_tower_from, _of_tower(given), _of_tower(wanted), "init_tower_from")
    everywhere = layout.shardings(map_specs(lambda spec: PartitionSpec(), given))
    own = {**everywhere, **_of_tower(layout.shardings(layout.storage[VISION]))}
    return _of_tower(opened.params({VISION: own}, np.float32)[VISION]), opened.origin


def _of_tower(vision: Any) -> Any:
    return {name: part for name, part in vision.items() if name not in ("projector", "contrast")}


def _check_shapes(init_from: str, given: Specs, wanted: Specs, key: str = "init_from") -> None:
    given, wanted = ({name: spec.shape for name, spec in named_specs(specs)} for specs in (given, wanted))
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            raise UserError(
                f"{key} {init_from} is another model: {name} is {given.get(name)} there, {wanted.get(name)} in the "
                "config"
            )
