"""Noise in the choice of experts, for studies of trainers and engines that disagree; no run has any by itself.

It is a choice of the process: an engine compiles on a thread of its own. A program keeps what it was compiled with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib

import jax
from jax import Array
import numpy as np

SelectionNoise = Callable[[tuple[int, ...], bool], np.ndarray]
"""``(shape, scoring) -> float32 [B, S, E]``, what is added to the scores by which a batch's experts are chosen.

``scoring`` is whether the program only scores tokens (``rl.methods.scoring_pass``), and neither samples nor trains.
"""

_noise: SelectionNoise | None = None
_scoring = False


@contextlib.contextmanager
def selection_noise(noise: SelectionNoise | None) -> Iterator[None]:
    """A context in which programs are compiled with this noise; None is without any."""
    global _noise
    if noise is None:
        yield
        return
    jax.clear_caches()  # what was compiled without it, or with another one
    _noise = noise
    try:
        yield
    finally:
        _noise = None
        jax.clear_caches()


@contextlib.contextmanager
def noise_of_scoring() -> Iterator[None]:
    """A context in which a program is traced that only scores."""
    global _scoring
    _scoring = True
    try:
        yield
    finally:
        _scoring = False


def noisy_bias(bias: Array, shape: tuple[int, ...]) -> Array:
    """The selection bias ``[E]``, with noise ``[B, S, E]`` where a study asks for it."""
    return bias if _noise is None else bias + _noise(shape, _scoring)
