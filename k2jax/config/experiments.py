"""Experiment files: Python with a function ``get_config``, which may start from that of another file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict


def load_experiment(path: Path | str) -> ModuleType:
    """Runs an experiment file, or a study's, and returns its module."""
    path = Path(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_beside(file: str, name: str) -> ConfigDict:
    """The configuration of another experiment in the same folder, to be edited: ``config_beside(__file__, "nano.py")``.

    Args:
        file: ``__file__`` of the experiment that asks.
        name: file name of the other one.
    """
    return load_experiment(Path(file).with_name(name)).get_config()
