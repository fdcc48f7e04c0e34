"""The loop of pretraining and supervised fine-tuning: next-token prediction, validated on held-out data.

Data order is a function of the step and randomness one of the seed, so a run that is killed at any moment and started
again repeats the same losses bit for bit, and on other numbers of processes or another mesh the same but for rounding.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from k2jax import processes
from k2jax.checkpoint import committed_steps
from k2jax.config.phases import RunPhase, phase_at, run_phases
from k2jax.config.schema import Config
from k2jax.data import TrainingData
from k2jax.errors import UserError
from k2jax.losses import NLL
from k2jax.train.corpus import open_corpus
from k2jax.train.ending import last_line
from k2jax.train.patience import Patience
from k2jax.train.program import Program
from k2jax.train.report import print_start, write_results
from k2jax.train.run import Run
from k2jax.train.validation import VALIDATIONS
from k2jax.train.workdir import lock_workdir


def train(config: Config, workdir: str | Path, command: str | None = None) -> int:
    """Trains to ``config.train.steps`` or as far as its patience goes, resuming from the workdir's newest checkpoint.

    Args:
        config: the experiment.
        workdir: the run's folder; see the package's documentation for what it holds.
        command: the command line that started it, for the report.

    Returns:
        The exit code of ``python -m k2jax.train``.

    Raises:
        UserError: for a mistake in the config, the data or the workdir.
    """
    if config.stage not in VALIDATIONS:
        raise UserError(f"config.stage is {config.stage!r}, and k2jax.train runs {' and '.join(VALIDATIONS)}")
    with lock_workdir(workdir, config) as path:
        phases = run_phases(config)
        begun = phase_at(config, max(committed_steps(path), default=0) + 1)
        program = Program(begun.config, loss=NLL())
        corpus = open_corpus(config, path, begun.name)
        data = corpus[begun.name]
        identity = {"tokenizer": data.tokenizer.fingerprint, "corpus or the tokenizer": data.fingerprint}
        with Run(program, path, identity, config) as run:
            if processes.is_first():
                print_start(config, data, run.start)
            patience = Patience(run)
            for phase in phases[phases.index(begun) :]:
                run.wait_saved()  # what follows may need other devices than there are
                if not _same_program(phase.config, program.config):
                    program = Program(phase.config, loss=NLL())
                run.enter(phase.name, program)
                _train_phase(run, phase, corpus[phase.name], patience, command)
                if run.has_ended:
                    break
        if processes.is_first():
            write_results(run, data, run.status, command)
            print(last_line(run, command))
        return run.exit_code


def _train_phase(run: Run, phase: RunPhase, data: TrainingData, patience: Patience, command: str | None) -> None:
    """The steps of a phase that are left: all of a run's without phases."""
    config = run.config
    validation = VALIDATIONS[config.stage](run, data)
    batches = data.loader.batches(run.done)
    for step in run.steps(phase.last):
        run.update([next(batches)])
        record = validation.when_due(step, step == phase.last)
        run.log(step, record)
        best = patience.is_best(step, record)
        run.save_when_due(step, patience.extra, best)
        if processes.is_first() and step % config.log.plots_every == 0 and step != config.train.steps:
            write_results(run, data, "running", command)


def _same_program(config: Config, other: Config) -> bool:
    """Whether two phases differ in nothing that is compiled."""
    own, others = (
        dataclasses.replace(each, data=dataclasses.replace(each.data, sources={})) for each in (config, other)
    )
    return own == others
