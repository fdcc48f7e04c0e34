"""``python -m k2jax.convert export``: turns a checkpoint into a folder that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
import re

import ml_dtypes
import numpy as np

from k2jax.checkpoint import checkpoint_step, run_config, run_folder
from k2jax.checkpoint.streaming import ParamsReader
from k2jax.convert.hf_config import write_config
from k2jax.convert.mapping import Block, blocks, hf_shape, to_rows
from k2jax.convert.tensors import INDEX, Planned, plan_shards, shard_names, write_shard
from k2jax.errors import UserError
from k2jax.model import model_specs
from k2jax.params import ParamSpec, named_specs
from k2jax.report.files import write_atomic
from k2jax.report.transfer import transfer
from k2jax.text.tokenizer import FILE_NAME, load_tokenizer

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
SHARD_BYTES = 5_000_000_000


def export_checkpoint(
    checkpoint: str | Path, to: str | Path, dtype: str | None = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes config, safetensors and tokenizer of a checkpoint.

    Host memory holds only a few blocks at a time.

    Args:
        checkpoint: a workdir or ``WORKDIR/checkpoints/STEP``.
        to: a folder without weights.
        dtype: ``float32``, ``bfloat16`` or ``float16`` for all weights but router biases; None keeps what is stored.
        shard_bytes: size of a shard [bytes].

    Raises:
        UserError: the checkpoint cannot be read, the folder is taken, or the architecture has no Hugging Face name.
    """
    to, workdir = Path(to), run_folder(checkpoint)
    if to.exists() and (not to.is_dir() or any(to.glob("*.safetensors"))):
        raise UserError(f"{to} holds weights already; name a new folder in --to")
    model = run_config(workdir).model
    specs = dict(named_specs(model_specs(model)))
    reader = ParamsReader(checkpoint_step(checkpoint), list(specs))
    for name, spec in specs.items():
        if reader.shape(name) != spec.shape:
            raise UserError(
                f"{checkpoint} does not fit its config.json: {name} is {reader.shape(name)}, not {spec.shape}"
            )
    dtypes = {
        name: DTYPES[dtype] if dtype and spec.role != "router_bias" else reader.dtype(name)
        for name, spec in specs.items()
    }
    tokenizer = load_tokenizer(workdir / "tokenizer") if (workdir / "tokenizer" / FILE_NAME).is_file() else None
    values = write_config(
        model, dtypes["embed"].name, tokenizer and tokenizer.bos, tokenizer and tokenizer.eos
    )  # first, since it may refuse the model
    to.mkdir(parents=True, exist_ok=True)
    _write_weights(reader, specs, dtypes, to, shard_bytes)
    if tokenizer:
        tokenizer.save(to)
    write_atomic(to / "config.json", json.dumps(values, indent=2) + "\n")  # last: without it nothing loads the folder
    print(f"exported to {to}")


def _write_weights(
    reader: ParamsReader, specs: dict[str, ParamSpec], dtypes: dict[str, np.dtype], to: Path, shard_bytes: int
) -> None:
    parts: dict[str, tuple[str, list[Block]]] = {}  # tensor -> the weight it comes from, and its blocks
    for name, spec in specs.items():
        for block in blocks(spec):
            parts.setdefault(block.name, (name, []))[1].append(block)
    ordered = sorted(parts, key=_natural)
    planned = [Planned(tensor, dtypes[parts[tensor][0]], hf_shape(specs[parts[tensor][0]])) for tensor in ordered]
    shards = plan_shards(planned, shard_bytes)
    files = shard_names(len(shards))
    total = sum(tensor.bytes for tensor in planned)
    with transfer("exporting", total) as advance:
        for file, shard in zip(files, shards, strict=True):
            with write_shard(to / file, shard) as writer:
                for tensor in shard:
                    name, pieces = parts[tensor.name]
                    for block in pieces:
                        rows = to_rows(specs[name], reader.read(name, block.index)).astype(tensor.dtype)
                        writer.write(rows)
                        advance(rows.nbytes)
    if len(files) > 1:
        where = {tensor.name: file for file, shard in zip(files, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_atomic(to / INDEX, json.dumps(index, indent=2) + "\n")


def _natural(name: str) -> list:
    """Sorts layer 2 before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
