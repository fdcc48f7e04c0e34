"""The open JAX research codebase for the Kimi K2 family of language models.

``k2jax.from_pretrained`` and ``k2jax.load_tokenizer`` are loaded when they are first used.
"""

from importlib import import_module
from typing import Any

_LAZY = {"from_pretrained": "from_pretrained", "load_tokenizer": "tokenizer_of"}
"""Names in ``k2jax.convert.loading``."""

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("k2jax.runtime").prepare_before_jax()
    return getattr(import_module("k2jax.convert.loading"), _LAZY[name])
