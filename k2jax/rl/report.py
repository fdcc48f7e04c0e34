"""What a run of reinforcement learning says about itself: plots and ``report.md``."""

from __future__ import annotations

from k2jax import processes
from k2jax.config.schema import Config
from k2jax.report.metrics import read_metrics
from k2jax.report.series import Records, scalars
from k2jax.train.report import write_run
from k2jax.train.run import Run


def write_results(run: Run, status: str, command: str | None) -> None:
    """Redraws the plots and rewrites ``report.md``.

    Args:
        run: the run.
        status: how it stands, in words.
        command: the command line that goes on with it, or None.
    """
    config, rl = run.config, run.config.rl
    shown = {
        "tasks": ", ".join(sorted(rl.tasks)),
        "rollouts": f"{rl.rollout.prompts} prompts x {rl.rollout.samples} responses, {rl.updates} updates",
        "objective": rl.loss.name,
        "init_from": config.init_from,
    }
    shares = _shares(read_metrics(run.workdir, most_lists=1))
    write_run(run, status, command, shown, held_out=_held_out(config), held_out_shares=shares)


def write_results_when_due(run: Run, step: int, command: str | None) -> None:
    """``write_results`` at the interval of plots, while the run continues; by the first process."""
    if processes.is_first() and step % run.config.log.plots_every == 0 and step != run.config.train.steps:
        write_results(run, "running", command)


def _held_out(config: Config) -> str:
    """What the held-out shares are, in words."""
    k = config.rl.eval_samples
    sampled = (
        f"; avg@{k}: share of {k} answers sampled at temperature "
        f"{config.rl.eval_temperature:g}; pass@{k}: tasks with a right one among them; "
        f"pass^{k}: tasks with all of them right"
    )
    return (
        f"Shares of {config.rl.eval_prompts:,} held-out tasks that are right at the first and the last evaluation, in "
        f"brackets their 95 % intervals. greedy: one answer at temperature 0, in the last rows by domain{sampled}."
    )


def _shares(records: Records) -> list[tuple[str, str, str]]:
    """(name, first, last) of every held-out share: those with an interval, then greedy accuracy by domain."""
    names = sorted({key for record in records for key in record if key.startswith("eval/")})
    with_interval = [name for name in names if f"{name}/low" in names]
    domains = [name for name in names if name.startswith("eval/greedy/") and not name.endswith(("/low", "/high"))]
    return [
        (name.removeprefix("eval/"), *(form(records, name, which) for which in (0, -1)))
        for form, some in ((_with_interval, with_interval), (_plain, domains))
        for name in some
    ]


def _with_interval(records: Records, name: str, which: int) -> str:
    low, high = (scalars(records, f"{name}/{end}")[1][which] for end in ("low", "high"))
    return f"{_plain(records, name, which)} ({low:.3f} to {high:.3f})"


def _plain(records: Records, name: str, which: int) -> str:
    return f"{scalars(records, name)[1][which]:.3f}"
