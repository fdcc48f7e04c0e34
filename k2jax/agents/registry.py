"""Datasets, environments, toolsets, verifiers by name: this package's, and those that installed packages declare.

A package adds one by an entry point of the group ``k2jax.datasets``, ``k2jax.environments``, ``k2jax.toolsets``,
``k2jax.apis``, ``k2jax.scaffolds``, ``k2jax.components``, ``k2jax.oracles``, ``k2jax.verifiers`` or
``k2jax.hack_checks``, whose name is used in configs and tasks and whose value is ``module:attribute``; or many by one
of the group ``k2jax.catalogs``, with a table as in ``k2jax.tasks.catalog``. Modules are imported at their first use.

Where a config or a task names what has options, they stand behind the name: ``"search corpus=docs.jsonl results=3"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module, metadata
import itertools
from types import MappingProxyType
from typing import Any

from k2jax.agents.options import parse_options, split_options
from k2jax.errors import UserError, abbreviate, nearest

CATALOGS = "k2jax.catalogs"  # a group of entry points


class Registry:
    """Objects of one kind by name.

    Attributes:
        noun: what one of them is, for messages.
        added: paths ``module:attribute`` that ``add`` has put in, by name; processes that are started need them.
    """

    def __init__(self, noun: str, group: str, builtin: Mapping[str, str] = MappingProxyType({})):
        """Args: ``noun`` for messages, ``group`` of entry points, ``builtin`` paths ``module:attribute`` by name."""
        self.noun, self._group, self._builtin = noun, group, dict(builtin)
        self._declared: dict[str, str] | None = None
        self.added: dict[str, str] = {}

    def add(self, name: str, path: str) -> None:
        """Adds an object that no package declares, for this process and the verifier processes that it starts.

        Raises:
            UserError: the name is taken, or the path is not ``module:attribute``.
        """
        known = self._paths().get(name)
        if known not in (None, path):
            raise UserError(f"the {self.noun} {name!r} already exists ({known}); choose another name")
        if not all(path.partition(":")):
            raise UserError(f"{abbreviate(path)} is no path of a {self.noun}; write module:attribute")
        self.added[name] = path

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._paths())

    def path(self, name: str) -> str:
        """The path ``module:attribute`` of a name, which is not imported.

        Raises:
            UserError: there is none of this name.
        """
        path = self._paths().get(name)
        if path is None:
            raise UserError(f"there is no {self.noun} {abbreviate(name)}{nearest(name, self.names())}")
        return path

    def get(self, name: str) -> Any:
        """The object of a name.

        Raises:
            UserError: there is none of this name, or its module cannot be imported.
        """
        path = self.path(name)
        module, _, attribute = path.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(
                f"the {self.noun} {name!r} cannot be loaded from {path}: {abbreviate(str(error))}"
            ) from error

    def make(self, text: str, **given: Any) -> Any:
        """What the maker of a name returns for its options.

        Args:
            text: the name, and behind it options ``name=value`` separated by spaces, quoted as in a shell.
            given: arguments beside the options.

        Raises:
            UserError: the name or an option is unknown, or a value cannot be read.
        """
        name, options = split_options(text, self.noun)
        maker = self.get(name)
        return maker(**parse_options(maker, options, f"{self.noun} {name!r}", tuple(given)), **given)

    def _paths(self) -> dict[str, str]:
        if self._declared is None:
            declared, installed = dict(self._builtin), metadata.entry_points()
            entries = [(entry.name, entry.value) for entry in installed.select(group=self._group)]
            tables = [catalog.get(self._group, {}).items() for catalog in _catalogs(installed)]
            for name, path in itertools.chain(*tables, entries):
                if declared.setdefault(name, path) != path:
                    both = f"{declared[name]} and {path}"
                    raise UserError(f"two packages declare the {self.noun} {name!r}: {both}; uninstall one of them")
            self._declared = declared
        return self._declared | self.added


def _catalogs(installed: metadata.EntryPoints) -> list[Mapping[str, Mapping[str, str]]]:
    """Tables of paths by group; UserError where this package's own is not among them."""
    entries = installed.select(group=CATALOGS)
    if "tasks" not in entries.names:
        raise UserError(
            "the installation of k2jax is older than its source and names no tasks: run pip install -e . again"
        )
    return [entry.load() for entry in entries]


datasets = Registry("dataset", "k2jax.datasets")
"""Makers of datasets: called with the options and ``split``."""

oracles = Registry("oracle", "k2jax.oracles")
"""Policies that solve every task of the dataset of the same name; see ``k2jax.agents.scaffolds.scripted``."""

environments = Registry(
    "environment",
    "k2jax.environments",
    {
        "container": "k2jax.agents.environments.container:ContainerEnvironment",
        "files": "k2jax.agents.environments.files:FilesEnvironment",
        "image_repository": "k2jax.agents.environments.image_repository:ImageRepositoryEnvironment",
        "named_files": "k2jax.agents.environments.files:NamedFilesEnvironment",
        "remote": "k2jax.agents.environments.remote:RemoteEnvironment",
        "repository": "k2jax.agents.environments.repository:RepositoryEnvironment",
        "single_turn": "k2jax.agents.environments.single_turn:SingleTurn",
        "tools": "k2jax.agents.environments.tools:ToolEnvironment",
    },
)
"""Makers of environments, such as their classes: called once for every episode with its ``Services``."""

toolsets = Registry(
    "toolset",
    "k2jax.toolsets",
    {
        "calculator": "k2jax.agents.toolsets.calculator:calculator",
        "delegate": "k2jax.agents.toolsets.delegate:DelegateTools",
        "edit": "k2jax.agents.toolsets.edit:EditTool",
        "mcp": "k2jax.agents.toolsets.mcp_tools:MCPTools",
        "python": "k2jax.agents.toolsets.python:PythonTool",
        "search": "k2jax.agents.toolsets.search:SearchTools",
        "shell": "k2jax.agents.toolsets.shell:ShellTool",
        "shell_session": "k2jax.agents.toolsets.shell_session:ShellSession",
        "store": "k2jax.agents.toolsets.store:StoreTools",
        "swarm": "k2jax.agents.swarm.swarm_tools:SwarmTools",
    },
)
"""Makers of toolsets: called with the options, once for every episode."""

apis = Registry("simulated API", "k2jax.apis")
"""Classes whose objects are tools of tasks; see ``k2jax.tasks.bfcl.simulated_apis``. A task is data and names no code:
only what a package declares runs here."""

scaffolds = Registry(
    "scaffold",
    "k2jax.scaffolds",
    {
        "black_box": "k2jax.agents.gateway.black_box:black_box",
        "chat": "k2jax.agents.scaffolds.chat:ChatScaffold",
        "command": "k2jax.agents.harness.command:CommandScaffold",
    },
)
"""Makers of scaffolds: called with the options, once for every episode."""

components = Registry(
    "prompt component",
    "k2jax.components",
    {
        "remote": "k2jax.agents.environments.remote:remote",
        "suffix": "k2jax.agents.components:suffix",
        "swarm": "k2jax.agents.swarm.prompt:swarm_prompt",
        "system": "k2jax.agents.components:system",
    },
)
"""Functions of a task, and of options, that return the task with another prompt."""

verifiers = Registry(
    "verifier",
    "k2jax.verifiers",
    {
        "handed_back": "k2jax.agents.harness.handed_back:HandedBackVerifier",
        "known_verdict": "k2jax.agents.judges.refinement:known_verdict",
        "trajectory_rubric": "k2jax.agents.judges.trajectories:TrajectoryRubric",
    },
)
"""Functions ``(task, answer) -> Reward``, which run in processes of their own, and makers of a ``Verifier``."""

hack_checks = Registry("hack check", "k2jax.hack_checks")
"""Functions ``(task, answer) -> bool``: whether an answer claims what does not hold; no critic rewards one."""

_OF_EPISODES = (environments, toolsets, scaffolds, verifiers)


def added_here() -> list[tuple[str, str, str]]:
    """What this process has added to what packages declare, for processes that run its episodes: noun, name, path."""
    return [(registry.noun, name, path) for registry in _OF_EPISODES for name, path in registry.added.items()]


def add_again(added: Iterable[Sequence[str]]) -> None:
    """Adds what ``added_here`` returned in another process."""
    registries = {registry.noun: registry for registry in _OF_EPISODES}
    for noun, name, path in added:
        registries[noun].add(name, path)
