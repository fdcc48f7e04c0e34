"""Saving and restoring training state with orbax.

Its parts are loaded when they are first used: orbax takes half a second to import, and many commands look for a
checkpoint without reading one.

In reading order: ``manager`` (save, restore, keep), ``storage`` (arrays with checksums), ``reading`` (who reads what),
``streaming`` (weights that do not fit in memory), ``meta`` and ``extra`` (what stands beside them), ``folders``.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "FORMAT": "meta",
    "Checkpoints": "manager",
    "ParamsReader": "streaming",
    "check_config": "manager",
    "checkpoint_config": "manager",
    "checkpoint_step": "manager",
    "committed_steps": "folders",
    "damaged": "manager",
    "read_meta": "manager",
    "run_config": "manager",
    "run_folder": "folders",
}
"""The module of each name."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
