"""Datasets, environments, toolsets, verifiers by name: the built-in ones, and those that installed packages declare.

A package adds one by an entry point of the group ``k2jax.datasets``, ``k2jax.environments``, ``k2jax.toolsets``,
``k2jax.apis``, ``k2jax.scaffolds``, ``k2jax.components``, ``k2jax.oracles`` or ``k2jax.verifiers``, whose name is used
in configs and tasks and whose value is ``module:attribute``. Modules are imported when a name is first used.

Where a config or a task names what has options, they stand behind the name: ``"search corpus=docs.jsonl results=3"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from typing import Any

from k2jax.agents.options import parse_options, split_options
from k2jax.agents.split import Split
from k2jax.agents.task import Task
from k2jax.errors import UserError, abbreviate, nearest


class Registry:
    """Objects of one kind by name.

    Attributes:
        added: paths ``module:attribute`` that ``add`` has put in, by name; processes that are started need them.
    """

    def __init__(self, noun: str, group: str, builtin: Mapping[str, str]):
        """Args: ``noun`` for messages, ``group`` of entry points, ``builtin`` paths ``module:attribute`` by name."""
        self._noun, self._group, self._builtin = noun, group, dict(builtin)
        self._declared: dict[str, str] | None = None
        self.added: dict[str, str] = {}

    def add(self, name: str, path: str) -> None:
        """Adds an object that no package declares, for this process and the verifier processes that it starts.

        Raises:
            UserError: the name is taken, or the path is not ``module:attribute``.
        """
        known = self._paths().get(name)
        if known not in (None, path):
            raise UserError(f"the {self._noun} {name!r} is there already ({known}); choose another name")
        if not all(path.partition(":")):
            raise UserError(f"{abbreviate(path)} is no path of a {self._noun}; write module:attribute")
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
            raise UserError(f"there is no {self._noun} {abbreviate(name)}{nearest(name, self.names())}")
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
                f"the {self._noun} {name!r} cannot be loaded from {path}: {abbreviate(str(error))}"
            ) from error

    def make(self, text: str, **given: Any) -> Any:
        """What the maker of a name returns for its options.

        Args:
            text: the name, and behind it options ``name=value`` separated by spaces, quoted as in a shell.
            given: arguments beside the options.

        Raises:
            UserError: the name or an option is unknown, or a value cannot be read.
        """
        name, options = split_options(text, self._noun)
        maker = self.get(name)
        return maker(**parse_options(maker, options, f"{self._noun} {name!r}", tuple(given)), **given)

    def _paths(self) -> dict[str, str]:
        if self._declared is None:
            self._declared = {}
            for entry in metadata.entry_points(group=self._group):
                known = (self._builtin | self._declared).get(entry.name, entry.value)
                if known != entry.value:
                    raise UserError(
                        f"two packages declare the {self._noun} {entry.name!r}: {known} and {entry.value}; "
                        "uninstall one of them"
                    )
                self._declared[entry.name] = entry.value
        return self._builtin | self._declared | self.added


datasets = Registry(
    "dataset",
    "k2jax.datasets",
    {
        "bfcl": "k2jax.tasks.bfcl.dataset:BFCLTasks",
        "characters": "k2jax.tasks.characters.dataset:CharacterTasks",
        "code": "k2jax.tasks.code.dataset:CodeTasks",
        "commands": "k2jax.tasks.commands.dataset:command_tasks",
        "expressions": "k2jax.tasks.expressions.dataset:expression_tasks",
        "file_answers": "k2jax.tasks.file_answers.dataset:FileAnswers",
        "human_eval": "k2jax.tasks.code.human_eval:HumanEvalTasks",
        "ifbench": "k2jax.tasks.ifbench.dataset:IFBenchTasks",
        "instructions": "k2jax.tasks.instructions.dataset:InstructionTasks",
        "math": "k2jax.tasks.mathematics.dataset:MathTasks",
        "mbpp": "k2jax.tasks.code.mbpp:MBPPTasks",
        "picture_tools": "k2jax.tasks.pictures.tools:PictureTools",
        "pictures": "k2jax.tasks.pictures.dataset:Pictures",
        "reasoning_gym": "k2jax.tasks.reasoning_gym.dataset:ReasoningGymTasks",
        "running_totals": "k2jax.tasks.running_totals.dataset:RunningTotals",
        "search_world": "k2jax.tasks.search_world.dataset:SearchTasks",
        "swe": "k2jax.tasks.swe.dataset:SWETasks",
        "tables": "k2jax.tasks.tables.dataset:TableTasks",
        "tau2": "k2jax.tasks.tau2.dataset:Tau2Tasks",
        "terminal": "k2jax.tasks.terminal.dataset:TerminalTasks",
        "tool_use": "k2jax.tasks.tool_use.dataset:ToolUseTasks",
        "verifiers": "k2jax.tasks.verifiers.dataset:VerifiersTasks",
    },
)
"""Makers of datasets: called with the options and ``split``."""

oracles = Registry(
    "oracle",
    "k2jax.oracles",
    {
        "bfcl": "k2jax.tasks.oracles:reference_calls",
        "commands": "k2jax.tasks.commands.dataset:oracle",
        "expressions": "k2jax.tasks.expressions.dataset:oracle",
        "human_eval": "k2jax.tasks.oracles:canonical_program",
        "ifbench": "k2jax.tasks.ifbench.oracle:ifbench_answer",
        "mbpp": "k2jax.tasks.oracles:canonical_program",
        "picture_tools": "k2jax.tasks.pictures.oracle:solve",
        "search_world": "k2jax.tasks.search_world.oracle:serial",
        "swe": "k2jax.tasks.oracles:reference_patch",
        "tables": "k2jax.tasks.oracles:answer_line",
        "tau2": "k2jax.tasks.tau2.dataset:reference_service",
        "terminal": "k2jax.tasks.oracles:shell_solution",
        "tool_use": "k2jax.tasks.oracles:tool_use",
    },
)
"""Policies that solve every task of the dataset of the same name; see ``k2jax.agents.scripted``."""

environments = Registry(
    "environment",
    "k2jax.environments",
    {
        "dialogue": "k2jax.tasks.running_totals.dataset:Dialogue",
        "files": "k2jax.agents.environments.files:FilesEnvironment",
        "named_files": "k2jax.agents.environments.files:NamedFilesEnvironment",
        "remote": "k2jax.agents.environments.remote:RemoteEnvironment",
        "repository": "k2jax.agents.environments.repository:RepositoryEnvironment",
        "single_turn": "k2jax.agents.environments.single_turn:SingleTurn",
        "tools": "k2jax.agents.environments.tools:ToolEnvironment",
        "verifiers": "k2jax.tasks.verifiers.environment:VerifiersEnvironment",
    },
)
"""Makers of environments: called once for every episode, with those of two arguments for which they have parameters:
``backend``, a function that returns the backend of sandboxes, and ``repositories``, see ``RepositoryEnvironment``."""

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
        "search_world": "k2jax.tasks.search_world.toolset:WorldTools",
        "simulated_apis": "k2jax.tasks.bfcl.simulated_apis:SimulatedAPIs",
        "shell": "k2jax.agents.toolsets.shell:ShellTool",
        "store": "k2jax.agents.toolsets.store:StoreTools",
        "tau2": "k2jax.tasks.tau2.toolset:DeskTools",
    },
)
"""Makers of toolsets: called with the options, once for every episode."""

_BFCL = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
apis = Registry(
    "simulated API",
    "k2jax.apis",
    {
        "GorillaFileSystem": f"{_BFCL}.gorilla_file_system:GorillaFileSystem",
        "MathAPI": f"{_BFCL}.math_api:MathAPI",
        "MessageAPI": f"{_BFCL}.message_api:MessageAPI",
        "TicketAPI": f"{_BFCL}.ticket_api:TicketAPI",
        "TradingBot": f"{_BFCL}.trading_bot:TradingBot",
        "TravelAPI": f"{_BFCL}.travel_booking:TravelAPI",
        "TwitterAPI": f"{_BFCL}.posting_api:TwitterAPI",
        "VehicleControlAPI": f"{_BFCL}.vehicle_control:VehicleControlAPI",
    },
)
"""Classes whose objects are tools of tasks; see ``k2jax.tasks.bfcl.simulated_apis``. A task is data and names no code:
only what a package declares runs here."""

scaffolds = Registry(
    "scaffold",
    "k2jax.scaffolds",
    {"black_box": "k2jax.agents.gateway.black_box:black_box", "chat": "k2jax.agents.chat_scaffold:ChatScaffold"},
)
"""Makers of scaffolds: called with the options, once for every episode."""

components = Registry(
    "prompt component",
    "k2jax.components",
    {
        "remote": "k2jax.agents.environments.remote:remote",
        "suffix": "k2jax.agents.components:suffix",
        "system": "k2jax.agents.components:system",
    },
)
"""Functions of a task, and of options, that return the task with another prompt."""

verifiers = Registry(
    "verifier",
    "k2jax.verifiers",
    {
        "answer_line": "k2jax.tasks.answer_line:answer_line",
        "file_answers": "k2jax.tasks.file_answers.dataset:FilesAsExpected",
        "final_answer": "k2jax.tasks.characters.dataset:final_answer",
        "ifbench": "k2jax.tasks.ifbench.verifier:ifbench",
        "instructions": "k2jax.tasks.instructions.verifier:instructions",
        "item_f1": "k2jax.tasks.item_f1:item_f1",
        "known_verdict": "k2jax.agents.judges.refinement:known_verdict",
        "math": "k2jax.tasks.mathematics.verifier:math",
        "reasoning_gym": "k2jax.tasks.reasoning_gym.verifier:reasoning_gym",
        "shell_test": "k2jax.tasks.commands.verifier:ShellTest",
        "simulated_apis": "k2jax.tasks.bfcl.verifier:APIStateVerifier",
        "swe": "k2jax.tasks.swe.verifier:SWEVerifier",
        "tau2": "k2jax.tasks.tau2.toolset:DeskVerifier",
        "terminal": "k2jax.tasks.terminal.verifier:TerminalVerifier",
        "unit_tests": "k2jax.tasks.code.verifier:UnitTests",
        "verifiers": "k2jax.tasks.verifiers.dataset:RubricReward",
        "visual_boxes": "k2jax.tasks.pictures.verifier:visual_boxes",
        "visual_click": "k2jax.tasks.pictures.verifier:visual_click",
        "visual_count": "k2jax.tasks.pictures.verifier:visual_count",
        "visual_points": "k2jax.tasks.pictures.verifier:visual_points",
        "visual_polygon": "k2jax.tasks.pictures.verifier:visual_polygon",
        "visual_words": "k2jax.tasks.pictures.verifier:visual_words",
    },
)
"""Functions ``(task, answer) -> Reward``, which run in processes of their own, and makers of a ``Verifier``."""


def load_tasks(dataset: str, options: Sequence[str] = (), split: Split = "train") -> list[Task]:
    """The tasks of a dataset, in its order.

    Example:
        >>> tasks = load_tasks("characters", ("kinds=add3+sort6", "count=100"), split="test")

    Args:
        dataset: its name.
        options: ``name=value`` for keyword parameters of its maker; lists are written ``a+b``.
        split: ``train``, or ``test`` for held-out tasks, which share no prompt with training.

    Raises:
        UserError: an unknown dataset or option, a value that cannot be read, or two tasks of one id.
    """
    maker = datasets.get(dataset)
    tasks = list(maker(split=split, **parse_options(maker, options, f"dataset {dataset!r}")).load())
    if not tasks:
        raise UserError(f"the dataset {dataset!r} has no tasks in the split {split!r} with these options")
    if len({task.id for task in tasks}) < len(tasks):
        raise UserError(f"the dataset {dataset!r} has several tasks of one id; its maker must number them")
    return tasks
