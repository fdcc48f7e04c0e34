"""Runs all experiments of a study one after another and writes the summary."""

from __future__ import annotations

from fnmatch import fnmatch
import json
from pathlib import Path
from typing import Any

from k2jax.agents.mixture import TaskMixture
from k2jax.checkpoint import run_config
from k2jax.config import Config, resolve
from k2jax.errors import UserError
from k2jax.files.atomic import write_atomic
from k2jax.model.selection_noise import selection_noise
from k2jax.report.metrics import read_metrics
from k2jax.report.style import save_figure
from k2jax.reproduce.results import RunResult
from k2jax.reproduce.study_file import Study, load_study
from k2jax.rl.loop import train as train_policy
from k2jax.train.loop import train

TRAIN = {"pretrain": train, "sft": train, "rl": train_policy}


def reproduce(name: str, workdir: str | Path, steps: int | None = None, only: str | None = None) -> int:
    """Runs study ``name`` and writes ``table.md`` and ``NAME.png``.

    Args:
        name: a file of ``experiments/reproduce``, without its suffix.
        workdir: folder of the study.
        steps: steps of the longest run, for a quick look; the others are shortened in proportion.
        only: pattern (``fnmatch``) of the runs to do; the summary is left to a call without it.

    Returns:
        The exit code: 0, or that of the run that was interrupted.

    Raises:
        UserError: if the study is unknown or incomplete, no run matches ``only``, too few tasks are held out for its
            evaluation, or the workdir holds runs with another configuration.
    """
    study = load_study(name)
    check_held_out(name, study)
    workdir = Path(workdir)
    results = {}
    workdir.mkdir(parents=True, exist_ok=True)
    study.prepare(workdir)
    runs = run_configs(study, workdir, steps, only)
    for number, (run, config) in enumerate(runs.items(), start=1):
        print(f"\n[{number}/{len(runs)}] {run}", flush=True)
        with selection_noise(study.selection_noise if config.stage == "rl" else None):
            exit_code = train_once(config, workdir / run)
        if exit_code not in (0, 3):
            return exit_code
        evaluation = _evaluated(name, study, config, workdir / run) if exit_code == 0 else {}
        results[run] = RunResult(config, read_metrics(workdir / run), exit_code, evaluation)
    if only:
        print(f"\nthe runs {only!r} are done; without --only the command does the others and writes the summary")
        return 0
    summary = study.summarize(results)
    write_atomic(workdir / "table.md", summary.markdown)
    save_figure(summary.figure, workdir / f"{name}.png")
    print(f"\n{summary.markdown}\n{workdir / 'table.md'}, {workdir / name}.png")
    return 0


def check_held_out(name: str, study: Study) -> None:
    """Loads the tasks on which a study measures, which it would otherwise miss after hours, when a run is finished.

    Args:
        name: of the study, for the message.
        study: its ``held_out`` returns the configurations of its evaluations.

    Raises:
        UserError: a dataset has fewer tasks in the split ``test`` than it is asked for, or than are measured.
    """
    for config in map(resolve, study.held_out()):
        expected, mixture = config.rl.eval_prompts, TaskMixture(config.rl.tasks, config.train.seed)
        if (count := len(mixture.held_out(expected))) < expected:
            raise UserError(
                f"study {name!r} measures on {expected:,} held-out tasks, and its classes of tasks have {count:,}; "
                "raise their count, or measure on fewer"
            )


def run_configs(
    study: Study, workdir: str | Path, steps: int | None = None, only: str | None = None
) -> dict[str, Config]:
    """The configurations of a study's runs by their names, in order; arguments as of ``reproduce``.

    Raises:
        UserError: no run matches ``only``, or a configuration is refused.
    """
    runs = shortened_runs(study, steps)
    configs = {}
    for run, overrides in runs.items():
        if fnmatch(run, only or "*"):
            config = study.get_config()
            config.update_from_flattened_dict({key: _placed(value, workdir) for key, value in overrides.items()})
            configs[run] = resolve(config)
    if not configs:
        raise UserError(f"no run matches --only={only!r}; there are {', '.join(runs)}")
    return configs


def _placed(value: Any, workdir: str | Path) -> Any:
    """A value of an override with the study's folder in the place of ``{workdir}``: runs start from earlier ones."""
    if isinstance(value, tuple):
        return tuple(_placed(element, workdir) for element in value)
    return value.replace("{workdir}", str(workdir)) if isinstance(value, str) else value


def _evaluated(name: str, study: Study, config: Config, workdir: Path) -> dict[str, Any]:
    """What the study measures of a finished run, once."""
    if study.evaluate is None:
        return {}
    file = workdir / f"{name}.json"
    if not file.exists():
        write_atomic(file, json.dumps(study.evaluate(config, workdir), indent=2))
    return json.loads(file.read_text())


def shortened_runs(study: Study, steps: int | None) -> dict[str, dict[str, Any]]:
    """Overrides of every run; with ``steps`` the longest run has this many steps, the others in proportion."""
    runs = study.runs()
    if steps is None:
        return runs
    default = study.get_config().train.steps
    lengths = {run: overrides.get("train.steps", default) for run, overrides in runs.items()}
    longest = max(lengths.values())
    return {
        run: {
            **overrides,
            "train.steps": max(1, round(steps * lengths[run] / longest)),
            "optimizer.schedule.warmup_steps": None,
        }
        for run, overrides in runs.items()
    }


def train_once(config: Config, workdir: Path) -> int:
    """Trains or resumes a run unless it is finished; a run that stopped on a non-finite value is not repeated.

    Returns:
        The exit code of the training.

    Raises:
        UserError: if the workdir holds a run with another configuration.
    """
    if (workdir / "config.json").exists() and run_config(workdir) != config:
        raise UserError(f"{workdir} holds a run with another configuration; use a new --workdir")
    finished = workdir / "exit_code"
    if finished.exists():
        return int(finished.read_text())
    exit_code = TRAIN[config.stage](config, workdir)
    if exit_code in (0, 3):
        write_atomic(finished, str(exit_code))
    return exit_code
