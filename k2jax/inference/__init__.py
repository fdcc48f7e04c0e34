"""Generation: continuous batching over a paged cache; token ids in, token ids and log-probabilities out.

The names below are loaded when they are first used, so that a process without jax can import ``k2jax.inference``.

In reading order: ``engine`` (continuous batching), ``request`` with ``constraints`` and ``scheduler`` with
``page_pool`` (who runs, and where), ``programs`` with ``batch``, ``shapes``, ``forward``, ``decode`` and ``sampler``
(what the devices do), ``weights`` and ``checksum``, ``client``, ``lockstep`` with ``participants``, ``worker`` and
``continuous`` (who uses an engine), ``loading`` (of a checkpoint), ``roles`` (frozen ones beside a policy), ``mesh``;
``media``, ``media_reader``, ``media_prompt`` and ``tower`` for images.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "ContinuousClient": "k2jax.inference.continuous",
    "Engine": "k2jax.inference.engine",
    "EngineClient": "k2jax.inference.client",
    "ForcedClient": "k2jax.inference.client",
    "LockstepClient": "k2jax.inference.client",
    "Sampling": "k2jax.client",
    "Worker": "k2jax.inference.worker",
    "chat_prompt": "k2jax.inference.media_prompt",
    "engine_of": "k2jax.inference.loading",
    "place_chunks": "k2jax.inference.media",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("k2jax.runtime").prepare_before_jax()
    return getattr(import_module(_LAZY[name]), name)
