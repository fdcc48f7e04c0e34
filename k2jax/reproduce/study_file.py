"""Finds a study and loads its file, without jax: a study may build on the runs of another one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from k2jax.config import load_experiment
from k2jax.errors import UserError

FOLDER = Path("experiments/reproduce")
FUNCTIONS = ("get_config", "runs", "summarize")
"""What a study has. It may have ``prepare(workdir)``, which makes files before the first run, ``around(config)``, a
context in which each run trains, and ``evaluate(config, workdir of the run)``, which measures a finished run in JSON
values that its result then holds. They are kept in the run's folder as ``evaluation.json``, or under the name
``EVALUATION`` of a study that shares runs with another one."""


def load_study(name: str) -> ModuleType:
    """Loads a file of ``experiments/reproduce`` and checks that it has all functions of a study.

    Raises:
        UserError: if there is no such file, or it lacks a function.
    """
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        names = sorted(p.stem for p in FOLDER.glob("*.py"))
        hint = f"there are {', '.join(names)}" if names else f"run from the repository's root, where {FOLDER}/ is"
        raise UserError(f"no study {name!r}; {hint}")
    module = load_experiment(path)
    if missing := [function for function in FUNCTIONS if not hasattr(module, function)]:
        raise UserError(f"study {name!r} needs the function {missing[0]} in {path}")
    return module
