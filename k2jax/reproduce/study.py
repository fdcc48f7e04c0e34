"""Runs the experiments of a study one after another and sums them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
import importlib.util
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax
from matplotlib.figure import Figure

from k2jax.checkpoint import run_config
from k2jax.config import Config, resolve
from k2jax.errors import UserError
from k2jax.report.files import write_atomic
from k2jax.report.metrics import read_metrics
from k2jax.report.style import save_figure
from k2jax.train.loop import train

FOLDER = Path("experiments/reproduce")


class RunResult(NamedTuple):
    """One run of a study.

    Attributes:
        config: what it ran.
        records: its metrics, one dict per step.
        exit_code: of its training; 3 is a run that stopped on a non-finite value, which is a result, too.
    """

    config: Config
    records: list[dict[str, Any]]
    exit_code: int


class Summary(NamedTuple):
    """What a study shows: a Markdown table with its explanation, and a picture."""

    markdown: str
    figure: Figure


def reproduce(name: str, workdir: str | Path, steps: int | None = None) -> int:
    """Runs study ``name`` and writes ``table.md`` and ``NAME.png``.

    Args:
        name: a file of ``experiments/reproduce`` and a module of this package.
        workdir: folder of the study.
        steps: for a quick look, steps of the longest run; the others are shortened in proportion.

    Returns:
        The exit code: 0, or that of the run that was interrupted.

    Raises:
        UserError: an unknown study, or a workdir that holds runs of another version of it.
    """
    experiment = _load(name)
    workdir = Path(workdir)
    # Runs that differ in their seed alone are one program: compile it once.
    jax.config.update("jax_compilation_cache_dir", str((workdir / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 2)
    summarize = _summarizer(name)
    results = {}
    runs = _shortened(experiment, steps)
    for number, (run, overrides) in enumerate(runs.items(), start=1):
        config = experiment.get_config()
        config.update_from_flattened_dict(overrides)
        resolved = resolve(config)
        print(f"\n[{number}/{len(runs)}] {run}", flush=True)
        code = _train(resolved, workdir / run)
        if code not in (0, 3):
            return code
        results[run] = RunResult(resolved, read_metrics(workdir / run), code)
    summary = summarize(results)
    write_atomic(workdir / "table.md", summary.markdown)
    save_figure(summary.figure, workdir / f"{name}.png")
    print(f"\n{summary.markdown}\n{workdir / 'table.md'}, {workdir / name}.png")
    return 0


def _shortened(experiment: Any, steps: int | None) -> dict[str, dict[str, Any]]:
    """The overrides of every run, with fewer steps for a quick look."""
    runs = experiment.runs()
    if steps is None:
        return runs
    usual = experiment.get_config().train.steps
    length = {run: overrides.get("train.steps", usual) for run, overrides in runs.items()}
    return {
        run: {
            **overrides,
            "train.steps": max(1, round(steps * length[run] / max(length.values()))),
            "optimizer.schedule.warmup_steps": None,
        }
        for run, overrides in runs.items()
    }


def _summarizer(name: str) -> Callable[[dict[str, RunResult]], Summary]:
    """``summarize`` of the module of this package that bears the study's name: looked for before the long work."""
    if importlib.util.find_spec(f"k2jax.reproduce.{name}") is None:
        raise UserError(f"study {name!r} needs k2jax/reproduce/{name}.py with a function summarize(results)")
    return import_module(f"k2jax.reproduce.{name}").summarize


def _train(config: Config, workdir: Path) -> int:
    """Trains unless the run is done; a run that stopped on a non-finite value is not tried again."""
    if (workdir / "config.json").exists() and run_config(workdir) != config:
        raise UserError(f"{workdir} holds a run with another configuration; use a new --workdir")
    done = workdir / "exit_code"
    if done.exists():
        return int(done.read_text())
    code = train(config, workdir)
    if code in (0, 3):
        write_atomic(done, str(code))
    return code


def _load(name: str) -> Any:
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        there = sorted(p.stem for p in FOLDER.glob("*.py"))
        hint = f"there are {', '.join(there)}" if there else f"run from the repository's root, where {FOLDER}/ is"
        raise UserError(f"no study {name!r}; {hint}")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def curve(result: RunResult, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric, where it was written."""
    points = [(record["step"], record[key]) for record in result.records if record.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def final(result: RunResult, key: str) -> float:
    """The last value of a metric; infinity for a run that stopped or never wrote it."""
    values = curve(result, key)[1]
    return values[-1] if values and result.exit_code == 0 else float("inf")


def seconds_at(result: RunResult, step: int) -> float:
    """Training time at ``step``, its steps counted at the median step time: compilation and noise stay out [s]."""
    times = [record["seconds"] for record in result.records]
    per_step = sorted(b - a for a, b in itertools.pairwise(times))
    return step * per_step[len(per_step) // 2] if per_step else float("nan")


def spread(values: Mapping[Any, float] | list[float]) -> str:
    """``mean (lowest to highest)`` of a few seeds."""
    numbers = list(values.values()) if isinstance(values, Mapping) else values
    return f"{sum(numbers) / len(numbers):.3f} ({min(numbers):.3f} to {max(numbers):.3f})"
