"""An engine of a checkpoint, filled as its weights are read, so that memory never holds the model twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from k2jax.convert.loading import open_pretrained, shardings_on
from k2jax.inference.engine import Engine


def load_engine(
    path: str | Path, dtype: Any = None, mesh: Mesh | None = None, *, vision: bool = False, **sizes: int
) -> Engine:
    """Opens a checkpoint argument, makes an engine, and reads the weights into it one by one.

    Args:
        path: as of ``from_pretrained``.
        dtype: of weights and computation; None keeps what is stored.
        mesh: of ``inference.mesh.make_engine_mesh``; None is the default device.
        vision: whether to load the tower of a model that has one, to read images.
        **sizes: of the engine, such as ``slots`` and ``max_length``.

    Raises:
        UserError: it cannot be read, or the sizes are invalid; those are checked before any weight is read.
    """
    engine, read_weights = open_engine(path, dtype, mesh, vision=vision, **sizes)
    read_weights()
    return engine


def open_engine(
    path: str | Path, dtype: Any = None, mesh: Mesh | None = None, *, vision: bool = False, **sizes: int
) -> tuple[Engine, Callable[[], None]]:
    """As ``load_engine``, but reads no weights yet: meanwhile the engine loads the programs that it has kept.

    Returns:
        The engine, and the function that reads the weights into it, which is called once.
    """
    opened = open_pretrained(path)
    engine = Engine(opened.model, opened.abstract(dtype, vision), mesh=mesh, **sizes)

    def read_weights() -> None:
        shardings = shardings_on(opened.model, mesh, vision) if mesh else None
        leaves = opened.leaves(shardings, dtype) if mesh else opened.host_leaves(vision)
        engine.update_params(leaves, engine.version, donate=True)

    return engine, read_weights
