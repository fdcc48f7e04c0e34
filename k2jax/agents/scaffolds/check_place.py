"""Tasks whose scaffold cannot work in the sandboxes of a run: refused before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterable

from k2jax.agents.mixture import DrawnTask
from k2jax.agents.registry import scaffolds
from k2jax.agents.sandbox.backends import REMOTE, backend_options
from k2jax.errors import UserError


def check_place(tasks: Iterable[DrawnTask], sandbox: str) -> None:
    """Refuses tasks that run an agent on another machine, where its budgets of time cannot be kept.

    Args:
        tasks: with their classes.
        sandbox: name of the backend, with its options.

    Raises:
        UserError: it names the class, the task, the scaffold and the key; or the backend has no such option.
    """
    if backend_options(sandbox)[0] not in REMOTE:
        return
    local: dict[str, bool] = {}
    for kind, task in tasks:
        if task.scaffold not in local:
            local[task.scaffold] = getattr(scaffolds.make(task.scaffold), "needs_this_machine", False)
        if local[task.scaffold]:
            raise UserError(
                f"the task {task.id!r} of class {kind!r} has the scaffold {task.scaffold!r}, whose agent needs a "
                f"sandbox of this machine: in {sandbox} its processor time is in no budget, and no gateway can be "
                "reached; set config.rl.rollout.sandbox to bubblewrap or nsjail"
            )
