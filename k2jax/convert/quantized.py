"""Tensors by their logical values: plain tensors as stored, FP8 and INT4 tensors dequantised to bfloat16 by rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from k2jax.convert.finite import is_floating
from k2jax.convert.tensors import StoredTensor
from k2jax.errors import UserError, abbreviate

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FP8_SCALE = "_scale_inv"  # despite the name, values are multiplied by it
PACKED, SCALE, SHAPE = "_packed", "_scale", "_shape"
GROUP = 32  # INT4 values along a row that share a scale


class Tensor(Protocol):
    """A tensor that can be read row by row."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows ``start`` to ``stop``."""


class Fp8Tensor(NamedTuple):
    """A block-scaled matrix of DeepSeek-V3 and Kimi K2: one float32 scale per block, edge blocks partial."""

    weight: StoredTensor
    scale: StoredTensor
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """``[out, in]``."""
        return self.weight.shape

    @property
    def dtype(self) -> np.dtype:
        """bfloat16."""
        return BFLOAT16

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows of weight times scale, rounded once, to bfloat16."""
        stop = self.shape[0] if stop is None else stop
        rows, columns = self.block
        scale = self.scale.read(start // rows, -(-stop // rows)).astype(np.float32)
        per_row = scale[np.arange(start, stop) // rows - start // rows]
        spread = np.repeat(per_row, columns, axis=1)[:, : self.shape[1]]
        return (self.weight.read(start, stop).astype(np.float32) * spread).astype(BFLOAT16)


class Int4Tensor(NamedTuple):
    """A matrix of compressed-tensors' pack-quantized format, symmetric, groups of 32 along a row.

    Eight values share an int32, the first in its lowest nibble; a nibble is the value plus 8.
    """

    packed: StoredTensor
    scale: StoredTensor
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """bfloat16."""
        return BFLOAT16

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows of value times scale, rounded once, to bfloat16."""
        words = self.packed.read(start, stop).view(np.uint32)
        nibbles = (words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 0xF
        values = nibbles.reshape(len(words), -1)[:, : self.shape[1]].astype(np.float32) - 8.0
        scale = self.scale.read(start, stop).astype(np.float32)
        return (values * np.repeat(scale, GROUP, axis=1)[:, : self.shape[1]]).astype(BFLOAT16)


def logical_tensors(stored: Mapping[str, StoredTensor], quantization: dict[str, Any] | None) -> dict[str, Tensor]:
    """Groups stored tensors into logical tensors, by the name of the unquantised weight.

    Args:
        stored: every tensor of a folder.
        quantization: the ``quantization_config`` of its config.json.

    Raises:
        UserError: an unsupported quantisation, or parts of a quantised tensor that do not fit each other.
    """
    block = _check_supported(quantization)
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if _is_part(name, stored):
            continue  # read with the weight that it belongs to
        if name.endswith(PACKED):
            base = name.removesuffix(PACKED)
            if base in stored:
                raise UserError(f"{base} is stored twice, quantised and not; fetch the folder again")
            tensors[base] = _int4(base, tensor, stored)
        elif tensor.dtype == ml_dtypes.float8_e4m3fn:
            tensors[name] = _fp8(name, tensor, stored, block)
        else:
            tensors[name] = tensor
    return tensors


def _is_part(name: str, stored: Mapping[str, StoredTensor]) -> bool:
    """Whether a tensor is the scale or shape of a quantised weight that is also stored."""
    if name.endswith(FP8_SCALE):
        return name.removesuffix(FP8_SCALE) in stored
    return any(name.endswith(part) and name.removesuffix(part) + PACKED in stored for part in (SCALE, SHAPE))


def _check_supported(quantization: dict[str, Any] | None) -> tuple[int, int] | None:
    """Returns the block size of FP8; None without FP8."""
    if not quantization:
        return None
    method = quantization.get("quant_method")
    if method == "fp8" and (block := quantization.get("weight_block_size")):
        if not isinstance(block, list) or len(block) != 2 or any(type(n) is not int or n < 1 for n in block):
            raise UserError(f"quantization_config: weight_block_size {abbreviate(block)} must be two sizes above 0")
        return block[0], block[1]
    if method == "compressed-tensors":
        _check_groups(quantization)
        return None
    raise UserError(
        f"quantization_config: {abbreviate(method)} is not supported; block-scaled fp8 and compressed-tensors are"
    )


def _check_groups(quantization: dict[str, Any]) -> None:
    """Raises UserError unless every group of a compressed-tensors config is of the one kind that is read."""
    groups = quantization.get("config_groups") or {}
    if not isinstance(groups, dict):
        raise UserError(f"quantization_config: config_groups {abbreviate(groups)} must be an object")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, dict) else None
        weights = weights if isinstance(weights, dict) else {}
        scheme = {key: weights.get(key) for key in ("num_bits", "type", "symmetric", "group_size")}
        if scheme != {"num_bits": 4, "type": "int", "symmetric": True, "group_size": GROUP}:
            raise UserError(
                f"quantization_config: {abbreviate(name)} is {abbreviate(scheme)}; only symmetric INT4 in groups of 32 "
                "is read"
            )
        if (form := group.get("format") or quantization.get("format")) != "pack-quantized":
            raise UserError(f"quantization_config: format {abbreviate(form)} is not pack-quantized")


def _fp8(
    name: str, weight: StoredTensor, stored: Mapping[str, StoredTensor], block: tuple[int, int] | None
) -> Fp8Tensor:
    scale = stored.get(name + FP8_SCALE)
    if block is None or scale is None:
        missing = "the config has no weight_block_size" if block is None else f"{name + FP8_SCALE} is missing"
        raise UserError(f"{name} is float8, but {missing}")
    expected = tuple(-(-size // step) for size, step in zip(weight.shape, block, strict=False))
    if len(weight.shape) != 2 or scale.shape != expected or not is_floating(scale.dtype):
        raise UserError(
            f"{name + FP8_SCALE} has shape {scale.shape} of {scale.dtype.name}; {weight.shape} in blocks of {block} "
            f"needs {expected} of floating-point numbers"
        )
    return Fp8Tensor(weight, scale, block)


def _int4(base: str, packed: StoredTensor, stored: Mapping[str, StoredTensor]) -> Int4Tensor:
    lost = [base + part for part in (SCALE, SHAPE) if base + part not in stored]
    if lost:
        raise UserError(f"{base + PACKED} has no {lost[0]}")
    scale, sizes = stored[base + SCALE], stored[base + SHAPE]
    if sizes.shape != (2,) or sizes.dtype not in (np.int64, np.int32) or not is_floating(scale.dtype):
        raise UserError(f"{base + SHAPE} must hold two whole numbers, and {base + SCALE} floating-point numbers")
    shape = tuple(int(size) for size in sizes.read())
    fits = min(shape) > 0 and packed.shape == (shape[0], -(-shape[1] // 8))
    if not fits or scale.shape != (shape[0], -(-shape[1] // GROUP)) or packed.dtype != np.int32:
        raise UserError(f"{base + PACKED} {packed.shape} and its scale {scale.shape} do not fit the shape {shape}")
    return Int4Tensor(packed, scale, shape)
