"""Tasks and environments as a config wires them: dataset, scaffold, tools, sandbox, verifier and prompt by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import inspect

from k2jax.agents.environment import Environment
from k2jax.agents.registry import components, environments, scaffolds, toolsets, verifiers
from k2jax.agents.sandbox import SandboxBackend
from k2jax.agents.sandbox.backends import make_backend
from k2jax.agents.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wiring:
    """What a config puts in the place of a dataset's own choice; what is empty or 0 stays as the dataset has it.

    Attributes:
        environment: its name; with ``tools`` and no other choice it is ``tools``.
        tools: toolsets, each a name with options.
        scaffold: a name with options.
        verifier: its name.
        components: prompt components, applied in order, each a name with options.
        steps: calls of the model in an episode.
        tokens: sampled tokens of an episode.
    """

    environment: str = ""
    tools: tuple[str, ...] = ()
    scaffold: str = ""
    verifier: str = ""
    components: tuple[str, ...] = ()
    steps: int = 0
    tokens: int = 0

    def check(self) -> None:
        """Raises UserError where a name or an option is unknown, so that a run stops before it begins."""
        for text in self.tools:
            toolsets.make(text)
        if self.scaffold:
            scaffolds.make(self.scaffold)
        for registry, name in ((environments, self.environment), (verifiers, self.verifier)):
            if name:
                registry.path(name)

    def applied(self, task: Task) -> Task:
        """A task with these choices.

        Raises:
            UserError: a prompt component is unknown, or raises it.
        """
        environment = self.environment or ("tools" if self.tools else "")
        chosen = {"environment": environment, "tools": self.tools, "scaffold": self.scaffold, "verifier": self.verifier}
        limits = {"steps": self.steps, "tokens": self.tokens}
        budget = dataclasses.replace(task.budget, **{name: limit for name, limit in limits.items() if limit})
        task = dataclasses.replace(task, budget=budget, **{name: value for name, value in chosen.items() if value})
        for text in self.components:
            task = components.make(text, task=task)
        return task


class EnvironmentMaker:
    """Makes environments; all of them share one backend of sandboxes, which is made when one is first needed."""

    def __init__(self, sandbox: str = "bubblewrap", *, images: str = "", repositories: str | None = ""):
        """Makes nothing yet.

        Args:
            sandbox: name of the backend.
            images: what tasks may choose their images from; see ``make_backend``.
            repositories: what tasks may choose their git repositories from; see ``RepositoryEnvironment``. None only
                for tasks of data sets that were loaded here, never for those of other programs.
        """
        backend: Callable[[], SandboxBackend] = functools.cache(lambda: make_backend(sandbox, images=images))
        self._given = {"backend": backend, "repositories": repositories}

    def make(self, task: Task) -> Environment:
        """A new environment for one episode of a task.

        Raises:
            UserError: there is no environment of this name.
        """
        maker = environments.get(task.environment)
        taken = inspect.signature(maker).parameters
        return maker(**{name: value for name, value in self._given.items() if name in taken})


def wired(tasks: Sequence[Task], wiring: Wiring) -> list[Task]:
    """Tasks with a config's choices.

    Raises:
        UserError: a name or an option is unknown.
    """
    wiring.check()
    return [wiring.applied(task) for task in tasks]
