"""Hugging Face tensors that are checked against the weight table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
import re

import numpy as np

from k2jax.config.schema import ModelConfig
from k2jax.convert.finite import all_finite, common_dtype, is_floating
from k2jax.convert.hf_config import read_config
from k2jax.convert.mapping import BLOCK_ELEMENTS, hf_shape
from k2jax.convert.quantized import Tensor, logical_tensors
from k2jax.convert.tensors import read_folder
from k2jax.convert.vision_names import fuse_qkv, published_names
from k2jax.errors import UserError
from k2jax.model.vision import multimodal_specs
from k2jax.params import ParamSpec, hf_tensors, named_specs

LISTED = 8  # names in an error
VISION_PREFIXES = ("vision_tower.", "mm_projector.")
ADAPTER = "adapter_config.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class CheckedTensors:
    """Tensors under Hugging Face's names that are those of a weight table.

    Args:
        origin: where they come from, for errors.
        specs: the weight table, by name.
        tensors: by Hugging Face name.

    Raises:
        UserError: tensors are missing, unknown, of another shape or no floating-point numbers.
    """

    def __init__(self, origin: Path, specs: dict[str, ParamSpec], tensors: dict[str, Tensor]):
        self.origin, self.specs, self.tensors = origin, specs, tensors
        expected = {name: hf_shape(spec) for spec in specs.values() for name, _ in hf_tensors(spec)}
        wrong = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
        wrong += [f"{name} is unknown" for name in tensors.keys() - expected.keys()]
        for name in expected.keys() & tensors.keys():
            shape, dtype = tuple(tensors[name].shape), tensors[name].dtype
            if shape != expected[name]:
                wrong.append(f"{name} is {shape}, not {expected[name]}")
            elif not is_floating(dtype):
                wrong.append(f"{name} holds {dtype.name}, not floating-point numbers")
        if wrong:
            more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
            raise UserError(f"{origin} does not fit its config.json: {'; '.join(sorted(wrong)[:LISTED])}{more}")

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Reads rows ``start`` to ``stop`` of a tensor.

        Raises:
            UserError: they cannot be read, or one of them is not a number or infinite.
        """
        rows = self.tensors[name].read(start, stop)
        if not all_finite(rows):
            raise UserError(
                f"{self.origin}: {name} holds NaN or an infinity in rows {start:,} to {stop - 1:,}; such a model "
                "computes nothing, so fetch it again or take an earlier checkpoint of it"
            )
        return rows

    def dtype(self, spec: ParamSpec) -> np.dtype:
        """Returns the narrowest dtype that holds every tensor of a weight without loss."""
        dtypes = {self.tensors[name].dtype for name, _ in hf_tensors(spec)}
        return common_dtype(dtypes)


class Source(CheckedTensors):
    """The tensors of a model under Hugging Face's names.

    Args:
        origin: where they come from, for errors.
        model: the architecture.
        tensors: by Hugging Face name, the decoder's without the prefix that they have beside a tower.
        notes: lines for the user: values without effect, tensors that are not read, a head that is not tied.

    Raises:
        UserError: as of ``CheckedTensors``.
    """

    def __init__(self, origin: Path, model: ModelConfig, tensors: dict[str, Tensor], notes: list[str]):
        super().__init__(origin, dict(named_specs(multimodal_specs(model))), tensors)
        self.model, self.notes = model, notes

    @property
    def size(self) -> int:
        """Bytes of all weights after dequantisation."""
        return sum(spec.size * self.dtype(spec).itemsize for spec in self.specs.values())


def open_folder(folder: str | Path) -> Source:
    """Opens a Hugging Face folder: reads its config and headers, and of the weights at most a head that may be tied.

    Raises:
        UserError: an unknown architecture, a missing or truncated shard, tensors that do not fit.
    """
    folder = Path(folder)
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder} holds an adapter ({ADAPTER}), which is not applied; merge it into the weights first")
    config = read_config(folder)
    stored = read_folder(folder)
    tensors = logical_tensors(published_names(stored) if config.prefix else stored, config.quantization)
    if config.model.vision.layers:
        tensors = fuse_qkv(tensors, config.model.vision.heads)
    kept, skipped = _select(tensors, config.model, config.prefix)
    model, tied = _tie(config.model, kept)
    return Source(folder, model, kept, config.notes + skipped + tied)


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
        layer = re.match(r"model\.layers\.([0-9]{1,9})\.", name)
        if layer and int(layer[1]) >= model.layers:
            prediction += 1
        elif not name.endswith("rotary_emb.inv_freq"):  # which the model computes
            kept[name] = tensor
    skipped = [f"skipped {prediction} tensors of multi-token prediction"] if prediction else []
    skipped += [f"skipped {outside} tensors outside the language model (vision)"] if outside else []
    return kept, skipped


def _tie(model: ModelConfig, tensors: dict[str, Tensor]) -> tuple[ModelConfig, list[str]]:
    """Ties the head to the embedding as transformers does: a stored head of its own stays; returns lines about it.

    The tensors keep what the model reads.
    """
    if not model.tied_head or HEAD not in tensors:
        return model, []
    if EMBEDDING not in tensors:
        tensors[EMBEDDING] = tensors.pop(HEAD)
        return model, [f"{HEAD} is the embedding too, which is not stored: tie_word_embeddings is true"]
    if _equal(tensors[HEAD], tensors[EMBEDDING]):
        del tensors[HEAD]
        return model, []
    line = f"{HEAD} is not the embedding, so the head is not tied, although tie_word_embeddings is true"
    return dataclasses.replace(model, tied_head=False), [line]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers; they are read a block at a time."""
    if tuple(a.shape) != tuple(b.shape) or not a.shape:
        return False
    rows = a.shape[0]
    step = max(1, BLOCK_ELEMENTS * rows // max(1, int(np.prod(a.shape, dtype=np.int64))))
    blocks = ((start, min(start + step, rows)) for start in range(0, rows, step))
    return all(np.array_equal(a.read(*block), b.read(*block)) for block in blocks)
