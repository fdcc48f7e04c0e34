"""Hugging Face tensors that are checked against the weight table."""

from __future__ import annotations

import functools
from pathlib import Path
import re

import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.convert.hf_config import read_config
from k2jax.convert.mapping import hf_shape
from k2jax.convert.quantized import Tensor, logical_tensors
from k2jax.convert.tensors import read_folder
from k2jax.convert.vision_names import fuse_qkv, published_names
from k2jax.errors import UserError
from k2jax.model.vision import multimodal_specs
from k2jax.params import ParamSpec, hf_tensors, named_specs

LISTED = 8  # names in an error
VISION_PREFIXES = ("vision_tower.", "mm_projector.")


class Source:
    """The tensors of a model under Hugging Face's names.

    Args:
        origin: where they come from, for errors.
        model: the architecture.
        tensors: by Hugging Face name, the decoder's without the prefix that they have beside a tower.
        skipped: lines for the user about tensors that are not read.

    Raises:
        UserError: tensors are missing, unknown or of another shape.
    """

    def __init__(self, origin: Path, model: ModelConfig, tensors: dict[str, Tensor], skipped: list[str]):
        self.origin, self.model, self.tensors, self.skipped = origin, model, tensors, skipped
        self.specs: dict[str, ParamSpec] = dict(named_specs(multimodal_specs(model)))
        expected = {name: hf_shape(spec) for spec in self.specs.values() for name, _ in hf_tensors(spec)}
        wrong = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
        wrong += [f"{name} is unknown" for name in tensors.keys() - expected.keys()]
        wrong += [
            f"{name} is {tensors[name].shape}, not {shape}"
            for name, shape in expected.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ]
        if wrong:
            more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
            raise UserError(f"{origin} does not fit its config.json: {'; '.join(sorted(wrong)[:LISTED])}{more}")

    def dtype(self, spec: ParamSpec) -> np.dtype:
        """Returns the narrowest dtype that holds every tensor of a weight without loss."""
        dtypes = {self.tensors[name].dtype for name, _ in hf_tensors(spec)}
        return np.dtype(functools.reduce(np.promote_types, dtypes))

    @property
    def size(self) -> int:
        """Bytes of all weights after dequantisation."""
        return sum(spec.size * self.dtype(spec).itemsize for spec in self.specs.values())


def open_folder(folder: str | Path) -> Source:
    """Opens a Hugging Face folder: reads its config and headers and no weights.

    Raises:
        UserError: an unknown architecture, a missing or truncated shard, tensors that do not fit.
    """
    folder = Path(folder)
    config = read_config(folder)
    stored = read_folder(folder)
    tensors = logical_tensors(published_names(stored) if config.prefix else stored, config.quantization)
    if config.model.vision.layers:
        tensors = fuse_qkv(tensors, config.model.vision.heads)
    kept, skipped = _select(tensors, config.model, config.prefix)
    return Source(folder, config.model, kept, skipped)


def _select(tensors: dict[str, Tensor], model: ModelConfig, prefix: str) -> tuple[dict[str, Tensor], list[str]]:
    """Selects the model's tensors; returns them and lines about the tensors that are not read."""
    kept, prediction, outside = {}, 0, 0
    for name, tensor in tensors.items():
        if model.vision.layers and name.startswith(VISION_PREFIXES):
            kept[name] = tensor
            continue
        if not name.startswith(prefix):
            outside += 1
            continue
        name = name.removeprefix(prefix)
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= model.layers:
            prediction += 1
        elif name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and model.tied_head):
            continue  # computed by the model; a copy of the embedding
        else:
            kept[name] = tensor
    skipped = [f"skipped {prediction} tensors of multi-token prediction"] if prediction else []
    skipped += [f"skipped {outside} tensors outside the language model (vision)"] if outside else []
    return kept, skipped
