"""Where an agent acts: an asynchronous Gymnasium of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from k2jax.agents.task import Task

Message = Mapping[str, Any]
OUTCOME = "outcome"
"""Key of a trajectory's metadata: the ``info`` of the step that ended the episode, for its verifier."""


class Observation(NamedTuple):
    """What the agent sees.

    Attributes:
        messages: in OpenAI's format, in order.
    """

    messages: tuple[Message, ...] = ()


class Step(NamedTuple):
    """The outcome of an action.

    Attributes:
        observation: what the agent sees next.
        terminated: the episode has come to its end.
        truncated: the environment has ended it early.
        info: JSON values for logs; that of the last step reaches the verifier, see ``OUTCOME``.
    """

    observation: Observation
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = {}


class Environment(Protocol):
    """One episode's surroundings. An episode is rebuilt by replaying (task, seed, actions)."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begins an episode; the observation starts with the task's instruction."""
        ...

    async def step(self, action: Message) -> Step:
        """Takes an assistant's message, with its parsed tool calls."""
        ...

    async def close(self) -> None:
        """Frees what the episode holds."""
        ...
