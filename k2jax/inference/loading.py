"""An engine of a checkpoint, filled as its weights are read, so that memory never holds the model twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import functools
from pathlib import Path
import sys
import threading
from typing import Any

from jax.sharding import Mesh

from k2jax.config.schema import ModelConfig
from k2jax.convert.loading import open_pretrained, shardings_on, tokenizer_of
from k2jax.inference.engine import Engine
from k2jax.text.constrained import Grammars
from k2jax.text.tokenizer import Tokenizer

_TURN_SECONDS = 1e-4
"""Time after which a thread hands Python's lock over while weights are read. A weight takes many short calls of NumPy,
each of which would otherwise wait 5 ms for a thread that imports modules."""


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
    with open_engine(path, dtype, mesh, vision=vision, **sizes) as engine:
        return engine


def engine_of(model: ModelConfig, params: Any, tokenizer: Tokenizer, **sizes: int) -> Engine:
    """An engine with weights of which the vocabulary is known, so that answers may have to obey grammars."""
    engine = Engine(model, params, **sizes)
    engine.grammars = Grammars(tokenizer, model.vocab)
    return engine


@contextlib.contextmanager
def open_engine(
    path: str | Path,
    dtype: Any = None,
    mesh: Mesh | None = None,
    *,
    vision: bool = False,
    fill: Callable[[Engine], None] | None = None,
    **sizes: int,
) -> Iterator[Engine]:
    """Loads as ``load_engine``, for what else a start does: within the context threads read weights and kept programs.

    The engine has its weights when the context ends, and answers nothing before. An exception in the context ends the
    reading after the weight that is being read.

    Args:
        path: as of ``load_engine``.
        dtype: as of ``load_engine``.
        mesh: as of ``load_engine``.
        vision: as of ``load_engine``.
        fill: gives the engine its weights, in place of the checkpoint, of which then none is read.
        **sizes: as of ``load_engine``.

    Example:
        >>> with open_engine("smollm2", slots=4, max_length=512) as engine:
        ...     tokenizer = tokenizer_of("smollm2")
        >>> engine.generate([tokenizer.encode("def ")], Sampling(max_tokens=8))
    """
    opened = open_pretrained(path)
    engine = Engine(opened.model, opened.abstract(dtype, vision), mesh=mesh, **sizes)
    engine.grammars = Grammars(functools.partial(tokenizer_of, path), opened.model.vocab)
    stopped = threading.Event()

    def read() -> None:
        shardings = shardings_on(opened.model, mesh, vision) if mesh else None
        leaves = opened.leaves(shardings, dtype) if mesh else opened.host_leaves(vision)
        engine.update_params(_until(stopped, leaves), engine.version, donate=True)

    with ThreadPoolExecutor(1, "weights") as thread:
        reading = thread.submit(read) if fill is None else thread.submit(fill, engine)
        with _short_turns():
            try:
                yield engine
            except BaseException:
                stopped.set()
                raise
            reading.result()


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Stopped(Exception):
    """Nobody waits for the weights any more."""


def _until(stopped: threading.Event, leaves: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, array in leaves:
        if stopped.is_set():
            raise _Stopped
        yield name, array
        del array  # before the next is read
