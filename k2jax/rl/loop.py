"""The loop of reinforcement learning: roll out, score, train, bring the new weights to the engine.

It is the loop of Kimi K1.5, K2 and K2.5 (K2, section 3.2; K2.5, section 4). An iteration is a function of the
checkpoint and its number: a run that is killed at any moment repeats it bit for bit. Verdicts of verifiers are read
back from their log, and episodes that were under way are sampled again.
"""

from pathlib import Path

from k2jax.config.schema import Config
from k2jax.rl.methods import Methods
from k2jax.rl.policy import Policy
from k2jax.rl.report import write_results_when_due
from k2jax.rl.sampler import Sampler
from k2jax.rl.setup import open_rl
from k2jax.rl.updates import Trainer
from k2jax.train.run import Run


def train(config: Config, workdir: str | Path, command: str | None = None) -> int:
    """Trains to ``config.train.steps`` iterations, from the workdir's newest checkpoint on; returns the exit code.

    Args:
        config: the experiment.
        workdir: the run's folder; see the package's documentation for what it holds.
        command: the command line that started it, for the report.

    Raises:
        UserError: for a mistake in the config, the tasks or the workdir.
    """
    with open_rl(config, workdir, command) as opened:
        run, sampler, _, _, methods = opened
        methods.begin(run, sampler)  # budgets of the initial policy, its score on held-out tasks
        for step in run.steps():
            iterate(step, *opened)
            write_results_when_due(run, step, command)
    return run.exit_code


def iterate(step: int, run: Run, sampler: Sampler, policy: Policy, trainer: Trainer, methods: Methods) -> None:
    """Does an iteration with what ``open_rl`` has opened; benchmarks do some of a run."""
    policy.check(step - 1)  # never train on samples of unknown weights
    groups = sampler.collect(step)  # roll out and score, token out
    with sampler.phase("train"):
        updates = methods.prepare(step, trainer.pack(groups))  # all of them before the first; token in
        for number, packed in updates.items():
            if (rows := methods.before_update(step, number, packed.rows)) is not None:
                trainer.update(number, rows)
    with sampler.phase("push"):
        policy.push(run.state.params, step)
    run.log(step, sampler.record() | trainer.record() | policy.record() | methods.record(step, groups))
    run.save_when_due(step, extra=sampler.extra() | methods.extra())
    sampler.saved(step)
