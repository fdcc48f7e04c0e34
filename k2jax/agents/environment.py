"""Where an agent acts: an asynchronous Gymnasium of messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from k2jax.agents.registry import environments
from k2jax.agents.roles import RoleClient
from k2jax.agents.sandbox import Sandbox, SandboxBackend, SandboxSpec
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.task import Task
from k2jax.errors import UserError
from k2jax.trajectory import Trajectory

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


class Services(NamedTuple):
    """What a run lends the environment of an episode.

    Attributes:
        backend: returns the backend of sandboxes; None where there is none.
        repositories: the folder below which the git repositories of tasks must be, whatever the tasks say; empty
            refuses all. None is the folder that each task names, which only tasks of a data set may choose that was
            loaded here: whoever writes a task could name any repository of this machine.
        spawn: runs sub-episodes, see ``Rollout.spawn``; None where nobody does.
        client_of: the client of a role, such as a simulated user; what it says is an observation. None is no role.
        metadata: of the episode's trajectory, which keep what its sandboxes have asked of other machines.
    """

    backend: Callable[[], SandboxBackend] | None = None
    repositories: str | None = ""
    spawn: Callable[..., Awaitable[Trajectory]] | None = None
    client_of: Callable[[str], RoleClient] | None = None
    metadata: dict[str, Any] | None = None


NO_SERVICES = Services()


class Environment:
    """One episode's surroundings. An episode is rebuilt by replaying (task, seed, actions).

    An environment has ``reset`` and ``step``, and overrides of the rest what it needs.

    Attributes:
        tools: declarations in OpenAI's format, with which the conversation begins; complete when ``reset`` returns.
        folder: of the task's files, for a program in the sandbox; empty where a black box has nothing to work on.
        services: what the run lends it; the episode fills in ``spawn`` and ``metadata`` before ``reset``.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    folder = ""

    def __init__(self, services: Services = NO_SERVICES):
        self.services = services

    @staticmethod
    def options_of(task: Task) -> list[str]:
        """What a task's metadata choose of the environment, as options ``name=value``: a server asks its operator."""
        return []

    @staticmethod
    def tools_of(task: Task) -> Sequence[Mapping[str, Any]]:
        """Those of ``tools`` that are known before an episode begins, by which a task's prompt is measured.

        Raises:
            UserError: the task names tools that cannot be made.
        """
        return ()

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begins an episode; the observation starts with the task's instruction."""
        raise NotImplementedError

    async def step(self, action: Message) -> Step:
        """Takes an assistant's message, with its parsed tool calls."""
        raise NotImplementedError

    async def close(self) -> None:
        """Frees what the episode holds."""

    async def open_workspace(self, task: Task, needs: SandboxSpec) -> Sandbox:
        """Opens a new sandbox whose ``folder`` is as the task begins, for an agent that works there by itself.

        A black-box scaffold calls it in the place of ``reset`` and ``step``; an earlier sandbox is closed.

        Args:
            task: what is asked.
            needs: what the agent needs of the sandbox beside what the environment itself does.

        Raises:
            InfrastructureError: it cannot be opened or filled.
            UserError: the environment has no folder.
        """
        where = f"the environment {task.environment!r} of the task {task.id!r}"
        raise UserError(f"{where} has no folder in which an agent could work; 'files' and 'repository' have")

    async def collect(self) -> Mapping[str, Any]:
        """What the verifier needs of the agent's work, as JSON values, before the sandbox is closed.

        A scaffold calls it where no ``step`` has ended the episode: for a black box, and where a budget was used up.

        Raises:
            InfrastructureError: it cannot be read.
        """
        return {}


class EnvironmentMaker:
    """Makes environments; all of them share one backend of sandboxes, which is made when one is first needed.

    Args:
        sandbox: name of the backend.
        images: what tasks may choose their images from; see ``make_backend``.
        repositories: see ``Services``.
        hosts: what tasks may choose the hosts from that their sandboxes reach; see ``make_backend``.
    """

    def __init__(
        self, sandbox: str = "bubblewrap", *, images: str = "", repositories: str | None = "", hosts: Sequence[str] = ()
    ):
        backend = functools.cache(lambda: make_backend(sandbox, images=images, hosts=hosts))
        self._services = Services(backend, repositories)

    def make(self, task: Task) -> Environment:
        """A new environment for one episode of a task.

        Raises:
            UserError: there is no environment of this name, or it is none.
        """
        made = environments.get(task.environment)(self._services)
        if not isinstance(made, Environment):
            raise UserError(
                f"the environment {task.environment!r} is a {type(made).__name__}; derive its class from "
                "k2jax.agents.Environment"
            )
        return made
