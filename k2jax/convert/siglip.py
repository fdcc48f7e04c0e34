"""SigLIP's image encoder as the start of a tower (MoonViT begins from SigLIP-SO-400M; Kimi K2.5, section 4.2).

Both are the same stack of pre-norm layers with biases and a norm at the end, and cut images into patches alike. What
differs has no weights: SigLIP has no rotary embedding, MoonViT a fixed table of frames beside the learned positions.
The latter's grid of positions is larger: SigLIP's is resampled to it as MoonViT resamples its own to an image. The
pooling head, the encoder of texts and the temperature of SigLIP have no place in a tower, and it has no projector.
"""

from __future__ import annotations

from pathlib import Path
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from k2jax.config.schema import ModelConfig, VisionConfig
from k2jax.convert.json_values import Values, read_json_object
from k2jax.convert.quantized import Tensor
from k2jax.convert.source import CheckedTensors
from k2jax.convert.tensors import read_folder
from k2jax.errors import UserError
from k2jax.model.vision import vision_specs
from k2jax.model.vision.positions import axis_weights
from k2jax.params import named_specs

KINDS = ("siglip", "siglip_vision_model")
"""``model_type`` of the folders that are read: with the encoder of texts, and the image encoder alone."""
_PREFIX = "vision_model."  # of published folders; transformers 5 saves the image encoder alone without it
_POSITIONS = "embeddings.position_embedding.weight"
_NAMES = (
    (r"embeddings\.patch_embedding\.", "vision_tower.patch_embed.proj."),
    (r"encoder\.layers\.(\d+)\.layer_norm1\.", r"vision_tower.encoder.blocks.\1.norm0."),
    (r"encoder\.layers\.(\d+)\.layer_norm2\.", r"vision_tower.encoder.blocks.\1.norm1."),
    (r"encoder\.layers\.(\d+)\.mlp\.fc1\.", r"vision_tower.encoder.blocks.\1.mlp.fc0."),
    (r"encoder\.layers\.(\d+)\.mlp\.fc2\.", r"vision_tower.encoder.blocks.\1.mlp.fc1."),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"vision_tower.encoder.blocks.\1.wo."),
    (r"post_layernorm\.", "vision_tower.encoder.final_layernorm."),
)
_QUERIES = re.compile(r"encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)")


class JoinedRows(NamedTuple):
    """Tensors one below the other."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all rows."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """That of the first."""
        return self.parts[0].dtype

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows; the tensors are read whole, a few MB of one layer."""
        return np.concatenate([part.read() for part in self.parts])[start:stop]


class ResizedGrid(NamedTuple):
    """Learned positions ``[given * given, width]`` as a grid ``[side, side, width]``, resampled bicubically.

    Attributes:
        positions: row by row.
        given: side of their grid.
        side: of the tower's.
    """

    positions: Tensor
    given: int
    side: int

    @property
    def shape(self) -> tuple[int, ...]:
        """``[side, side, width]``."""
        return (self.side, self.side, self.positions.shape[1])

    @property
    def dtype(self) -> np.dtype:
        """Of the means: float32."""
        return np.dtype(np.float32)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Reads rows of the grid."""
        grid = self.positions.read().astype(np.float32).reshape(self.given, self.given, -1)
        resample = jax.jit(axis_weights, static_argnums=2)
        weights = np.asarray(resample(jnp.arange(self.side), jnp.full(self.side, self.side), self.given))
        return np.einsum("yi,xj,ijd->yxd", weights[start:stop], weights, grid, optimize=True)


class SiglipTower(CheckedTensors):
    """The tensors of a folder under the names of a K2.5 folder's tower.

    Attributes:
        model: with the tower that they make; its decoder and projector are in no folder of SigLIP.
        given: side of SigLIP's own grid of positions.
    """

    def __init__(self, folder: str | Path, grid: int):
        """Opens a folder.

        Args:
            folder: of a kind of ``KINDS``.
            grid: side of the tower's grid of positions.

        Raises:
            UserError: it cannot be read, or is another architecture.
        """
        file = Path(folder) / "config.json"
        content = read_json_object(file)
        try:
            values = Values(content)
            if content.get("model_type") == "siglip":
                values = values.group("vision_config") or Values({})
            vision, self.given = _read(values, grid)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        stored = {name.removeprefix(_PREFIX): tensor for name, tensor in read_folder(Path(folder)).items()}
        self.model = ModelConfig(vision=vision)
        specs = {name: spec for name, spec in vision_specs(self.model).items() if name != "projector"}
        super().__init__(Path(folder), dict(named_specs(specs)), published_tower(stored, self.given, grid))


def is_siglip(path: str | Path) -> bool:
    """Whether a path is a folder of SigLIP."""
    file = Path(path) / "config.json"
    return file.is_file() and read_json_object(file).get("model_type") in KINDS


def _read(values: Values, grid: int) -> tuple[VisionConfig, int]:
    """The tower of a config, and the side of SigLIP's grid; what is missing has the value of transformers."""
    values.fixed("num_channels", 3)
    values.fixed("hidden_act", "gelu_pytorch_tanh")
    patch = values.whole("patch_size", 1, 1 << 12, 16)
    image = values.whole("image_size", 1, 1 << 16, 224)
    vision = VisionConfig(
        layers=values.whole("num_hidden_layers", 1, 10_000, 12),
        width=values.whole("hidden_size", 1, 1 << 24, 768),
        heads=values.whole("num_attention_heads", 1, 1 << 16, 12),
        ffn=values.whole("intermediate_size", 1, 1 << 24, 3072),
        patch=patch,
        grid=grid,
    )
    if vision.width % (4 * vision.heads):
        raise UserError(f"hidden_size {vision.width} does not divide into {vision.heads} heads of a multiple of 4")
    return vision, image // patch


def published_tower(stored: dict[str, Tensor], given: int, grid: int) -> dict[str, Tensor]:
    """The tensors of a tower under their published names; those that have no place in one are left out."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if match := _QUERIES.fullmatch(name):
            layer, kind = match.groups()
            parts = [f"encoder.layers.{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"]
            if all(part in stored for part in parts):
                joined = JoinedRows(tuple(stored[part] for part in parts))
                tensors[f"vision_tower.encoder.blocks.{layer}.wqkv.{kind}"] = joined
        elif name == _POSITIONS:
            if len(tensor.shape) != 2 or tensor.shape[0] != given * given:
                raise UserError(f"{name} is {tuple(tensor.shape)}, not {given} x {given} positions; see image_size")
            tensors["vision_tower.patch_embed.pos_emb.weight"] = ResizedGrid(tensor, given, grid)
        else:
            for pattern, replacement in _NAMES:
                if re.match(pattern, name):
                    tensors[re.sub("^" + pattern, replacement, name)] = tensor
    return tensors
