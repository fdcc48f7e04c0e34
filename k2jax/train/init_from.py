"""Parameters that a run starts from: a checkpoint's, read straight onto the run's mesh."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec
import numpy as np

from k2jax.checkpoint import committed_steps, run_folder
from k2jax.config.schema import Config
from k2jax.convert.loading import is_run, open_pretrained, open_tower
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.model.vision import multimodal_specs
from k2jax.parallel.layout import Layout
from k2jax.parallel.resharding import from_logical, logical_partition
from k2jax.params import VISION, Specs, map_specs, named_specs

CONTRAST = "contrast"
"""Part of the tower's tree with what SigLIP's loss learns."""


def check_checkpoints(config: Config) -> None:
    """Rejects a folder without a checkpoint in ``init_from`` and ``init_tower_from``, before anything is opened.

    Raises:
        UserError: in one line that names the key.
    """
    for key, name in (("init_from", config.init_from), ("init_tower_from", config.init_tower_from)):
        if not name or not Path(name).is_dir():  # a packaged model, a file, or what opening it will say is not there
            continue
        if is_run(name):
            if not committed_steps(run_folder(name)):
                raise UserError(
                    f"config.{key} {name} is a workdir without a checkpoint: train it first, or name another"
                )
        elif not (Path(name) / "config.json").exists():
            raise UserError(
                f"config.{key} {name} holds no checkpoint: neither checkpoints/ of a workdir nor config.json of a "
                "Hugging Face folder"
            )


def pretrained_params(init_from: str, layout: Layout, initial: Any = None) -> tuple[Any, str]:
    """The parameters of a checkpoint argument in float32, as the layout stores them, and a description of the source.

    Each process reads what its devices hold of the logical form; the devices convert it to the stored form. A model
    with vision may start from a decoder alone, and one with SigLIP's loss from one without and the other way round.

    Args:
        init_from: a checkpoint argument.
        layout: of the run.
        initial: parameters as the layout stores them, of which the tower, the projector and what SigLIP's loss learns
            stay where the checkpoint has none.

    Raises:
        UserError: it cannot be read, or is another model than the layout's; then no weight is read.
    """
    opened = open_pretrained(init_from)
    kept = {VISION: initial[VISION]} if VISION in layout.logical and not opened.model.vision.layers else {}
    layout = layout.text if kept else layout
    given = multimodal_specs(opened.model) if VISION in layout.logical else model_specs(opened.model)
    _check_shapes(init_from, _without_contrast(given), _without_contrast(layout.logical))
    shardings = _without_contrast(layout.shardings(logical_partition(layout)))
    if CONTRAST in given.get(VISION, {}):  # two numbers, which are read with the rest
        everywhere = layout.shardings(map_specs(lambda spec: PartitionSpec(), given[VISION][CONTRAST]))
        shardings[VISION] = {**shardings[VISION], CONTRAST: everywhere}
    logical = opened.params(shardings, np.float32)
    if (CONTRAST in layout.logical.get(VISION, {})) != (CONTRAST in given.get(VISION, {})):
        logical = _without_contrast(logical)
        if CONTRAST in layout.logical[VISION]:
            logical[VISION][CONTRAST] = initial[VISION][CONTRAST]
    convert = jax.jit(functools.partial(from_logical, layout), out_shardings=layout.shardings(layout.storage))
    return {**convert(logical), **kept}, opened.origin


def _without_contrast(tree: Any) -> dict[str, Any]:
    """A tree of all weights without those of SigLIP's loss, which a stage has and its neighbours have not."""
    vision = {VISION: _without(tree[VISION], CONTRAST)} if VISION in tree else {}
    return {**tree, **vision}


def _without(tree: Any, *names: str) -> dict[str, Any]:
    return {name: part for name, part in tree.items() if name not in names}


def pretrained_tower(init_tower_from: str, layout: Layout) -> tuple[Any, str]:
    """The tower of a checkpoint or of SigLIP in float32, as the layout stores it, and a description of the source.

    The projector is left out: its width is that of the decoder with which the tower was trained.

    Args:
        init_tower_from: a checkpoint argument, or a Hugging Face folder of SigLIP.
        layout: of the run.

    Raises:
        UserError: it cannot be read, has no vision, or another tower than the layout's; then no weight is read.
    """
    wanted = layout.logical[VISION]
    try:
        opened = open_tower(init_tower_from, wanted["grid"].shape[0])
    except UserError as error:
        raise UserError(f"init_tower_from: {error}") from None
    given = multimodal_specs(opened.model)[VISION]
    _check_shapes(init_tower_from, _of_tower(given), _of_tower(wanted), "init_tower_from")
    own = _of_tower(layout.shardings(layout.storage[VISION]))
    return opened.params({VISION: own}, np.float32)[VISION], opened.origin


def _of_tower(vision: Any) -> Any:
    return _without(vision, "projector", CONTRAST)


def _check_shapes(init_from: str, given: Specs, wanted: Specs, key: str = "init_from") -> None:
    given, wanted = ({name: spec.shape for name, spec in named_specs(specs)} for specs in (given, wanted))
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            raise UserError(
                f"{key} {init_from} is another model: {name} is {given.get(name)} there, {wanted.get(name)} in the "
                "config"
            )
