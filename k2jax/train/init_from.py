"""Parameters that a run starts from: a checkpoint's, read straight onto the run's mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from k2jax.convert.loading import open_pretrained
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.model.vision import multimodal_specs
from k2jax.parallel.layout import VISION, Layout
from k2jax.parallel.resharding import from_logical, logical_partition
from k2jax.params import Specs, named_specs


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


def _check_shapes(init_from: str, given: Specs, wanted: Specs) -> None:
    given, wanted = ({name: spec.shape for name, spec in named_specs(specs)} for specs in (given, wanted))
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            raise UserError(
                f"init_from {init_from} is another model: {name} is {given.get(name)} there, {wanted.get(name)} in the "
                "config"
            )
