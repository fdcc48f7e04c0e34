"""The tensors of a K2.5 folder under their published names, whichever of three ways they are named.

Published folders fuse queries, keys and values and rotate pairs of neighbours. transformers' own modules have three
matrices and rotate halves. What transformers saves has the published layout with a few names of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
import re
from typing import NamedTuple, TypeVar

import numpy as np

from k2jax.convert.quantized import Tensor

_RENAMES = (
    (r"language_model\.model\.blocks\.", "language_model.model.layers."),
    (r"vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    (r"model\.language_model\.", "language_model.model."),
    (r"lm_head\.", "language_model.lm_head."),
    (r"model\.vision_tower\.layers\.(\d+)\.norm1\.", r"vision_tower.encoder.blocks.\1.norm0."),
    (r"model\.vision_tower\.layers\.(\d+)\.norm2\.", r"vision_tower.encoder.blocks.\1.norm1."),
    (r"model\.vision_tower\.layers\.(\d+)\.mlp\.fc1\.", r"vision_tower.encoder.blocks.\1.mlp.fc0."),
    (r"model\.vision_tower\.layers\.(\d+)\.mlp\.fc2\.", r"vision_tower.encoder.blocks.\1.mlp.fc1."),
    (r"model\.vision_tower\.layers\.(\d+)\.attn\.proj\.", r"vision_tower.encoder.blocks.\1.wo."),
    (r"model\.vision_tower\.layers\.(\d+)\.attn\.", r"vision_tower.encoder.blocks.\1."),
    (r"model\.vision_tower\.final_layernorm\.", "vision_tower.encoder.final_layernorm."),
    (r"model\.vision_tower\.patch_embed\.pos_emb\.position_embeddings", "vision_tower.patch_embed.pos_emb.weight"),
    (r"model\.vision_tower\.patch_embed\.", "vision_tower.patch_embed."),
    (r"model\.mm_projector\.in_proj\.", "mm_projector.proj.0."),
    (r"model\.mm_projector\.out_proj\.", "mm_projector.proj.2."),
    (r"model\.mm_projector\.", "mm_projector."),
)
_QUERIES = re.compile(r"(vision_tower\.encoder\.blocks\.\d+\.)q_proj\.(weight|bias)")
_Any = TypeVar("_Any")


def published_names(tensors: Mapping[str, _Any]) -> dict[str, _Any]:
    """Gives tensors of a K2.5 folder their published names; unknown names stay."""
    return {_published(name): tensor for name, tensor in tensors.items()}


def _published(name: str) -> str:
    for pattern, replacement in _RENAMES:
        if re.match(pattern, name):
            return re.sub("^" + pattern, replacement, name)
    return name


class FusedQKV(NamedTuple):
    """transformers' three tensors as the published one: queries and keys go back to pairs of neighbours.

    Attributes:
        parts: queries, keys and values, ``[width, ...]`` each.
        heads: attention heads.
    """

    parts: tuple[Tensor, Tensor, Tensor]
    heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """``[3 * width, ...]``."""
        return (3 * self.parts[0].shape[0], *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """That of the queries."""
        return self.parts[0].dtype

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows; the three tensors are read whole, a few MB of one layer."""
        q, k, v = (part.read() for part in self.parts)
        return np.concatenate([self._to_neighbours(q), self._to_neighbours(k), v])[start:stop]

    def _to_neighbours(self, rows: np.ndarray) -> np.ndarray:
        halves = rows.reshape(self.heads, 2, -1, *rows.shape[1:])
        return halves.swapaxes(1, 2).reshape(rows.shape)


def fuse_qkv(tensors: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Joins the queries, keys and values of every layer of the tower where they are separate."""
    fused = dict(tensors)
    for name in tensors:
        if match := _QUERIES.fullmatch(name):
            layer, kind = match.groups()
            names = [f"{layer}{part}_proj.{kind}" for part in "qkv"]
            if all(part in fused for part in names):
                fused[f"{layer}wqkv.{kind}"] = FusedQKV(tuple(fused.pop(part) for part in names), heads)
    return fused
