"""Where every weight of every preset lies on a mesh, as text; ``python -m tests.parallel.golden`` writes it anew."""

import math
from pathlib import Path

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from k2jax.config import defaults, resolve
from k2jax.config.presets import PRESETS
from k2jax.parallel.layout import Layout, make_layout
from k2jax.parallel.mesh import axis_sizes
from k2jax.params import named_specs

FILE = Path(__file__).with_name("layouts.txt")
MESHES = {  # data, stage, expert; virtual stages
    "nano": (2, 1, 8, 1),
    "micro": (2, 2, 8, 1),
    "moonlight": (4, 2, 8, 1),
    "deepseek_v3": (8, 2, 16, 1),
    "k2": (4, 16, 16, 4),
    "k2.5": (4, 16, 16, 4),
    "smollm2_135m": (2, 3, 1, 2),
    "qwen2.5_0.5b": (4, 4, 1, 1),
    "qwen3_0.6b": (4, 4, 1, 1),
    "llama3.2_1b": (16, 1, 1, 1),
}
SHARED = {  # with devices that share rows and layers: as above, then context, tensor
    "nano": (2, 1, 8, 1, 2, 2),
    "micro": (2, 1, 4, 1, 2, 2),
    "moonlight": (4, 2, 8, 1, 1, 2),
    "deepseek_v3": (8, 2, 16, 1, 4, 2),
    "k2": (2, 16, 16, 4, 2, 2),
    "k2.5": (2, 16, 16, 4, 2, 2),
    "smollm2_135m": (2, 3, 1, 2, 1, 3),
    "qwen2.5_0.5b": (4, 1, 1, 1, 1, 2),
    "qwen3_0.6b": (2, 4, 1, 1, 2, 4),
    "llama3.2_1b": (2, 1, 1, 1, 4, 2),
}


def layout_of(
    preset: str, data: int, stage: int, expert: int, virtual_stages: int, context: int = 1, tensor: int = 1
) -> Layout:
    config = defaults("pretrain", model=preset)
    sizes = {"data": data, "stage": stage, "expert": expert, "context": context, "tensor": tensor}
    config.parallel.update(sizes | {"virtual_stages": virtual_stages})
    config.train.batch_size = data * expert
    if config.model.gqa.qk_norm:
        config.optimizer.name = "muon"
    config = resolve(config)
    mesh = axis_sizes(config, math.prod(sizes.values()))
    return make_layout(config, AbstractMesh(tuple(mesh.values()), tuple(mesh)))


def text() -> str:
    lines = []
    for preset, mesh in [*((preset, MESHES[preset]) for preset in PRESETS), *SHARED.items()]:
        layout = layout_of(preset, *mesh)
        sizes = ", ".join(f"{axis} {size}" for axis, size in layout.mesh.shape.items())
        lines.append(f"{preset}: {sizes}; {layout.chunks} chunks of {layout.chunk_layers} {layout.layer_group} layers")
        trees = leaves(layout.compute), leaves(layout.storage)
        for (name, spec), *placed in zip(named_specs(layout.specs), *trees, strict=True):
            compute, rest = (", ".join(_entry(entry) for entry in one) or "-" for one in placed)
            lines.append(f"  {name} {'x'.join(map(str, spec.shape))} | {compute} | {rest}")
    return "\n".join(lines) + "\n"


def leaves(tree) -> list[PartitionSpec]:
    """The partitions of a tree."""
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _entry(entry) -> str:
    return "." if entry is None else entry if isinstance(entry, str) else "+".join(entry)


if __name__ == "__main__":
    FILE.write_text(text())
