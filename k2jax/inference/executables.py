"""Compiled programs of an engine, kept as files: a later start neither traces nor compiles them.

JAX's own cache of compiled programs spares the compiler alone. A program of many layers takes half a second to trace,
as long again to look up, and both hold Python's lock. What is kept here is found by the shapes of a batch, and a thread
loads it while the weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
import functools
import hashlib
import math
import os
from pathlib import Path
import pickle
import sys
import threading
import time
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.experimental.serialize_executable import deserialize_and_load, serialize
import jaxlib

from k2jax import runtime
from k2jax.files.atomic import write_atomic

PRELOADED = 3
"""Most programs that are loaded before they are asked for, the longest kept first: those of a start's first token.

Of a server these are two chunks of a prompt and the drawing. Others are loaded when they are first needed: on few cores
they would only keep the first token waiting.
"""
SUFFIX = ".executable"
_SHORT_ON_CPU = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""No matrix product through YNNPACK. It prepares each of them before a process's first run, all of SmolLM2's in 0.35 s,
where a chunk of 16 tokens takes 0.05 s with and without it."""

Compiled = Callable[..., Any]

_compiled: dict[Path, Compiled] = {}  # of this process, by all engines


class Executables:
    """Compiles an engine's programs, one for each shape of a batch, and keeps them.

    A file holds machine code and is trusted like the cache of JAX beside it. Its name is a digest of the versions of
    JAX, the sources of this project, JAX's settings, the device, and the types and shapes of all arguments, so that no
    other program is ever run in its place.

    Args:
        folder: of the files; None keeps none, and programs are called through ``jax.jit``.
        engine: what distinguishes the engines that should not load each other's programs, with a ``repr`` of its value.
        device: on which the programs run.
    """

    def __init__(self, folder: Path | None, engine: Hashable, device: jax.Device):
        self._folder, self._device, self._programs, self._loading = folder, device, {}, {}
        self._names: list[str] = []  # of files that former starts have left
        if folder is not None:
            self._prefix = _digest(_surroundings(device), engine)
            self._loading = self._preload()

    def run(self, function: Any, held: tuple, inputs: tuple, *, short: bool = False, **static: Any) -> Any:
        """Returns ``function(*held, *given, **static)``.

        Args:
            function: of ``jax.jit``, whose static arguments are ``static``.
            held: arguments of shapes that are the same in every call of this engine.
            inputs: arguments whose shapes choose the program.
            short: whether a run computes so little that what the compiler's libraries prepare before the first one
                takes longer than they save. Decides how a program is compiled that is to be kept, and must be a
                function of the shapes of ``inputs``.
            **static: of the function, with a ``repr`` of their values.
        """
        if self._folder is None:
            return function(*held, *inputs, **static)
        key = function, _shapes(inputs), tuple(static.values())
        if key not in self._programs:
            path = self._path(function, held + inputs, static)
            if path not in _compiled:
                options = _SHORT_ON_CPU if short and self._device.platform == "cpu" else None
                _compiled[path] = self._program(path, function, held + inputs, static, options)
            self._programs[key] = _compiled[path]
        return self._programs[key](*held, *inputs)

    def kept(self, *functions: Any) -> bool:
        """Whether former starts have kept a program of each of these functions, for some shapes."""
        return all(any(name.startswith(self._stem(each)) for name in self._names) for each in functions)

    def _path(self, function: Any, arguments: tuple, static: dict) -> Path:
        settings = sorted(jax.config.values.items())  # as they are where the program would be traced
        name = _digest(_shapes(arguments), sorted(static.items()), settings)
        return self._folder / f"{self._stem(function)}{name}{SUFFIX}"

    def _stem(self, function: Any) -> str:
        return f"{self._prefix}-{function.__name__}-"

    def _program(self, path: Path, function: Any, arguments: tuple, static: dict, options: dict | None) -> Compiled:
        loading = self._loading.pop(path, None)
        try:
            # One that waits for others to be loaded is loaded here, at the same time as they are.
            return _load(path, self._device) if loading is None or loading.cancel() else loading.result()
        except FileNotFoundError:
            pass
        except Exception as error:  # whatever an unpickler or the runtime make of a damaged file
            print(f"{path} cannot be read, and its program is compiled again: {error!r}", file=sys.stderr)
        with _no_cache_of_jax:
            compiled = function.lower(*arguments, **static).compile(compiler_options=options)
        try:
            write_atomic(path, pickle.dumps(serialize(compiled)))
        except (OSError, RuntimeError, ValueError) as error:  # no room, or nothing that this backend can write
            runtime.say_not_kept(str(error))
        return compiled

    def _preload(self) -> dict[Path, Future]:
        """Begins to load what former starts have kept, in the order in which it was first needed."""
        paths = sorted(self._folder.glob(f"{self._prefix}-*{SUFFIX}"), key=_time)
        self._names = [path.name for path in paths]
        pool = ThreadPoolExecutor(1, "executables")
        first = [path for path in paths[:PRELOADED] if path not in _compiled]
        loading = {path: pool.submit(_load, path, self._device) for path in first}
        pool.shutdown(wait=False)
        return loading


def folder_of_programs() -> Path | None:
    """Where programs of one device of this machine are kept: beside those of JAX, and only where JAX keeps its own."""
    folder = jax.config.jax_compilation_cache_dir
    if not folder or not _no_cache_of_jax.wanted or "://" in folder:
        return None
    return Path(folder)


def _load(path: Path, device: jax.Device) -> Compiled:
    content = path.read_bytes()
    # The time of the last use, by which ``runtime.forget_oldest`` chooses; that of the first start stays.
    os.utime(path, (time.time(), path.stat().st_mtime))
    return deserialize_and_load(*pickle.loads(content), device.client, execution_devices=[device])


def _time(path: Path) -> float:
    """When a program was first needed; another process may forget it meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


class _NoCacheOfJax:
    """Compiles anew: a program that JAX has read from its cache on a CPU cannot be written again without its code.

    JAX's setting is of the process, in which several engines may compile at a time: the last of them restores it.
    """

    def __init__(self):
        self._lock, self._inside, self._enabled = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._enabled = jax.config.jax_enable_compilation_cache
                self._set(False)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._set(self._enabled)

    @property
    def wanted(self) -> bool:
        """Whether JAX keeps programs where no engine compiles."""
        with self._lock:
            return self._enabled if self._inside else jax.config.jax_enable_compilation_cache

    def _set(self, enabled: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # it looks at the setting once


_no_cache_of_jax = _NoCacheOfJax()


def _shapes(arguments: tuple) -> tuple:
    leaves, structure = jax.tree.flatten(arguments)
    return structure, *((leaf.shape, leaf.dtype) for leaf in leaves)


@functools.cache
def _surroundings(device: jax.Device) -> str:
    """A digest of what every program depends on: sources, versions, the compiler's options and the device."""
    packages = [Path(__file__).parents[1], Path(__file__).parents[2] / "pallas_kernels"]
    sources = [_digest(path.read_bytes()) for package in packages for path in sorted(package.rglob("*.py"))]
    flags = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    versions = jax.__version__, jaxlib.__version__, sys.version, device.client.platform_version
    return _digest(sources, flags, versions, device.device_kind, device.id, jax.device_count())


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:20]
