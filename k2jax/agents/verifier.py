"""What an answer is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from k2jax.agents.sandbox import Sandbox, SandboxSpec
from k2jax.agents.task import Task
from k2jax.client import ChatEndpoint
from k2jax.trajectory import Reward, Trajectory

FAILED = "failed_verifier"
"""Key of a reward's ``info``: why an answer is worth 0 on which a verifier failed that judges every answer."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Verifier:
    """Scores finished episodes by all that is in them, with a fresh sandbox to run things in.

    Whatever judges an answer by its text alone is a function ``(task, answer) -> Reward`` instead.

    Attributes:
        spec: of the sandbox, which has the task's image; None for a verifier that runs nothing, and is given none.
        asks_model: whether ``score`` asks a model: the endpoint of ``rl.critic``, by text. What the agent wrote is data
            to it, and may try to give it orders.
        model: the endpoint, open while ``score`` runs, of a verifier that asks one.
    """

    spec: SandboxSpec | None = SandboxSpec()
    asks_model = False
    model: ChatEndpoint

    async def score(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Reward:
        """The reward of an episode.

        What the agent has left may be anything, and must never be a reason for an error: it could then choose that its
        episode is masked instead of worth 0.

        Raises:
            InfrastructureError: it could not be found out; the caller tries again and then masks the sample.
        """
        raise NotImplementedError


class Control(NamedTuple):
    """How to find out whether a verifier works on a task.

    Attributes:
        answer: makes an answer to a task that the verifier judges in no time.
        worth: value of its reward; None where any reward shows that the verifier works.
    """

    answer: Callable[[Task], str]
    worth: float | None


def judges_every_answer(control: Callable[[Task], str], worth: float | None = 1.0) -> Callable[[_Function], _Function]:
    """Declares that a function verifier judges every answer: where it fails on one, that answer is worth 0.

    Without the declaration a verifier that runs out of time or memory, dies or raises masks the sample, whoever is to
    blame, and a policy can learn answers that do so instead of wrong ones that are worth 0. With it the pool has the
    verifier judge a control answer to the same task after a failure. Where that succeeds, the failed answer is to
    blame; where it does not, the machine or the task is, and the sample is masked.

    The time limit of such a verifier is processor time, so that a busy machine is not taken for a slow answer; a
    verifier that sleeps through six times as much has failed too.

    Example:
        >>> @judges_every_answer(lambda task: task.metadata["answer"])
        ... def exact(task, answer):
        ...     return Reward(float(answer == task.metadata["answer"]))

    Args:
        control: makes the control answer of a task, which should be a right one.
        worth: value of its reward; None where any reward shows that the verifier works.
    """

    def declare(verifier: _Function) -> _Function:
        verifier.control = Control(control, worth)  # type: ignore[attr-defined]
        return verifier

    return declare


def metadata_answer(task: Task) -> str:
    """The text of a task's ``metadata["answer"]``, a control answer of verifiers that compare with it."""
    return str(task.metadata["answer"])
