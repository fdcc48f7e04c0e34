"""What a study is, and how its file is found, without jax: a study may build on the runs of another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from k2jax.config import Config, load_experiment
from k2jax.errors import UserError
from k2jax.reproduce.results import RunResult, Summary

FOLDER = Path("experiments/reproduce")


@dataclasses.dataclass(frozen=True)
class Study:
    """A study: ``STUDY`` of a file in ``experiments/reproduce``.

    Attributes:
        get_config: the configuration that all runs share; also the file's own, for ``--config``.
        runs: overrides of each run, by its name; ``{workdir}`` in a value is the study's folder.
        summarize: the table and the picture of all results.
        prepare: makes files in the study's folder before the first run.
        held_out: configurations of the evaluations, so that too few tasks are an error before the first run.
        evaluate: measures a finished run in JSON values, from its configuration and its folder. They are kept in the
            run's folder under the study's name: studies may share runs.
        selection_noise: noise in the choice of experts of runs by rewards, see ``model.selection_noise``.
    """

    get_config: Callable[[], ConfigDict]
    runs: Callable[[], dict[str, dict[str, Any]]]
    summarize: Callable[[dict[str, RunResult]], Summary]
    _: dataclasses.KW_ONLY
    prepare: Callable[[Path], None] = lambda workdir: None
    held_out: Callable[[], Sequence[ConfigDict]] = tuple
    evaluate: Callable[[Config, Path], Mapping[str, Any]] | None = None
    selection_noise: Callable[[tuple[int, ...], bool], Any] | None = None


def load_study_file(name: str) -> ModuleType:
    """The module of a file of ``experiments/reproduce``.

    Raises:
        UserError: there is no such file.
    """
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        names = sorted(p.stem for p in FOLDER.glob("*.py"))
        hint = f"there are {', '.join(names)}" if names else f"run from the repository's root, where {FOLDER}/ is"
        raise UserError(f"no study {name!r}; {hint}")
    return load_experiment(path)


def load_study(name: str) -> Study:
    """The study of a file of ``experiments/reproduce``.

    Raises:
        UserError: there is no such file, or it has no ``STUDY``.
    """
    study = getattr(load_study_file(name), "STUDY", None)
    if not isinstance(study, Study):
        raise UserError(f"{FOLDER / name}.py has no STUDY; it must be a k2jax.reproduce.Study")
    return study
