"""``python -m k2jax.convert export``: turns a checkpoint into a folder that transformers loads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
import re

import ml_dtypes
import numpy as np

from k2jax.config.replace import replace_keys
from k2jax.config.schema import ModelConfig
from k2jax.convert.hf_config import TEXT_PREFIX
from k2jax.convert.hf_config_writing import write_config
from k2jax.convert.image_limits import copy_limits
from k2jax.convert.loading import Opened, open_pretrained, tokenizer_folder, tokenizer_of
from k2jax.convert.mapping import Block, blocks, hf_shape, to_rows
from k2jax.convert.packaged import PACKAGED
from k2jax.convert.tensors import INDEX, Planned, plan_shards, shard_names, write_shard
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.model.vision import multimodal_specs
from k2jax.params import ParamSpec, named_specs
from k2jax.report.transfer import transfer
from k2jax.text.media import MEDIA_BEGIN, MEDIA_END, MEDIA_PAD
from k2jax.text.rank_file import RANK_FILE_NAME
from k2jax.text.tokenizer import FILE_NAME, Tokenizer

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
SHARD_BYTES = 5_000_000_000  # of a file
MEDIA_TOKENS = {"image_token_id": MEDIA_PAD, "vision_start_token_id": MEDIA_BEGIN, "vision_end_token_id": MEDIA_END}
"""Tokens of images in published vocabularies, by the keys of their ids in transformers' config.json."""


def export_checkpoint(checkpoint: str | Path, to: str | Path, dtype: str | None = None) -> None:
    """Writes config, safetensors and tokenizer of a checkpoint.

    Host memory holds only a few blocks at a time.

    Args:
        checkpoint: a workdir, ``WORKDIR/checkpoints/STEP``, a packaged model's name, or another Hugging Face folder.
        to: a folder without weights.
        dtype: ``float32``, ``bfloat16`` or ``float16`` for all weights but router biases; None keeps what is stored.

    Raises:
        UserError: the checkpoint cannot be read, the folder is taken, or the architecture has no Hugging Face name.
    """
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.glob("*.safetensors"))):
        raise UserError(f"{to} holds weights already; name a new folder in --to")
    opened = open_pretrained(checkpoint)
    specs = _named_for_export(opened.model)
    dtypes = {
        name: DTYPES[dtype] if dtype and spec.role != "router_bias" else opened.dtype(name, spec)
        for name, spec in specs.items()
    }
    tokenizer = _tokenizer(checkpoint)
    ids = (tokenizer and tokenizer.bos, tokenizer and tokenizer.eos, _media_ids(tokenizer))
    values = write_config(opened.model, dtypes["embed"].name, *ids)  # first, since it may refuse the model
    to.mkdir(parents=True, exist_ok=True)
    _write_weights(opened, specs, dtypes, to)
    if tokenizer:
        tokenizer.save(to)
    if opened.model.vision.layers:
        copy_limits(checkpoint, to, opened.model.vision)
    write_atomic(to / "config.json", json.dumps(values, indent=2) + "\n")  # last: without it nothing loads the folder
    print(f"exported to {to}")


def _tokenizer(checkpoint: str | Path) -> Tokenizer | None:
    """The checkpoint's tokenizer, or None for an imported one that came without."""
    folder = tokenizer_folder(checkpoint)
    is_there = str(checkpoint) in PACKAGED or any((folder / name).is_file() for name in (FILE_NAME, RANK_FILE_NAME))
    return tokenizer_of(checkpoint) if is_there else None


def _media_ids(tokenizer: Tokenizer | None) -> dict[str, int]:
    """Ids of the tokens of images, by their keys in config.json; none without a tokenizer that has them."""
    if tokenizer is None or not all(tokenizer.has_special(token) for token in MEDIA_TOKENS.values()):
        return {}
    return {key: tokenizer.special_id(token) for key, token in MEDIA_TOKENS.items()}


def _named_for_export(model: ModelConfig) -> dict[str, ParamSpec]:
    """The weights by name; beside a tower the decoder's tensors have a prefix."""
    specs = dict(named_specs(multimodal_specs(replace_keys(model, {"vision.contrast": False}))))
    if not model.vision.layers:
        return specs
    return {
        name: spec if name.startswith("vision/") else dataclasses.replace(spec, hf=TEXT_PREFIX + spec.hf)
        for name, spec in specs.items()
    }


def _write_weights(opened: Opened, specs: dict[str, ParamSpec], dtypes: dict[str, np.dtype], to: Path) -> None:
    parts: dict[str, list[tuple[str, Block]]] = {}  # tensor -> its blocks, with the weights that they come from
    for name, spec in specs.items():
        for block in blocks(spec):
            parts.setdefault(block.name, []).append((name, block))
    ordered = sorted(parts, key=_natural)
    sources = {tensor: blocks[0][0] for tensor, blocks in parts.items()}
    planned = [Planned(tensor, dtypes[sources[tensor]], hf_shape(specs[sources[tensor]])) for tensor in ordered]
    shards = plan_shards(planned, SHARD_BYTES)
    files = shard_names(len(shards))
    total = sum(tensor.bytes for tensor in planned)
    with transfer("exporting", total) as advance:
        for file, shard in zip(files, shards, strict=True):
            with write_shard(to / file, shard) as write:
                for tensor in shard:
                    for name, block in sorted(parts[tensor.name], key=lambda part: part[1].start):
                        rows = to_rows(specs[name], _read(opened, name, specs[name], block)).astype(tensor.dtype)
                        write(rows)
                        advance(rows.nbytes)
    if len(files) > 1:
        where = {tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_atomic(to / INDEX, json.dumps(index, indent=2) + "\n")


def _read(opened: Opened, name: str, spec: ParamSpec, block: Block) -> np.ndarray:
    """The part of a weight that a block names."""
    indices = [slice(at, at + 1) if isinstance(at, int) else at for at in block.index]
    bounds = [at.indices(size)[:2] for at, size in zip(indices, spec.shape, strict=True)]
    part = opened.read(name, spec, tuple(slice(*pair) for pair in bounds))
    return part[tuple(0 if isinstance(at, int) else slice(None) for at in block.index)]


def _natural(name: str) -> list:
    """Sorts layer 2 before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
