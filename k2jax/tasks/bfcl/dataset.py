"""The multi-turn tasks of the Berkeley function-calling leaderboard (Patil et al. 2025), on simulated APIs.

The data and the classes come from the package ``bfcl-eval``; other files of the same format may name classes that other
packages declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import inspect
from typing import Any, Literal

from k2jax.agents.environments.tools import USER_TURNS
from k2jax.agents.registry import apis
from k2jax.agents.split import FileSplit
from k2jax.agents.task import Budget, Task
from k2jax.agents.toolsets.functions import declared_function
from k2jax.agents.toolsets.types import declared
from k2jax.agents.verifier_pool.needed_packages import NeededPackages
from k2jax.errors import UserError
from k2jax.tasks.bfcl.simulated_apis import APIS, class_names
from k2jax.tasks.record_fields import in_split, read_records

PACKAGES = NeededPackages("bfcl", ("bfcl_eval", "mpmath"), "pip install --no-deps bfcl-eval, and pip install mpmath")
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


class BFCLTasks:
    """Requests of several turns, for evaluation alone; the domain is ``bfcl/`` and the category."""

    def __init__(
        self,
        category: Literal["base", "miss_param", "long_context"] = "base",
        path: str = "",
        steps: int = 60,
        split: FileSplit = "train",
    ):
        """A set of tasks.

        Args:
            category: of the package's tasks.
            path: JSONL instead, of records with ``id``, ``question`` (messages of each turn), ``initial_config``,
                ``ground_truth`` (calls of each turn, written as Python) and ``classes`` (names of declared ones).
            steps: of an episode, see ``Budget``.
            split: ``test`` or ``all``; there is nothing to train on, but for a file of your own, which is divided as
                others are: a tenth of it, by content, is ``test``.

        Raises:
            UserError: the split is ``train``, and there is no path.
        """
        if split == "train" and not path:
            raise UserError("bfcl is for evaluation alone: all of its tasks are held out; use the split test")
        self._category, self._path, self._steps = category, path, steps
        self._split: FileSplit = split if path else "all"

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file or the package cannot be read, or a record is no task.
        """
        for record in read_records("bfcl", self._path) if self._path else _packaged(self._category):
            try:
                task = self._task(record)
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise UserError(f"bfcl: the record {record.get('id')!r} is no task: {error!r}") from None
            if in_split(repr(task.instruction), self._split):
                yield task

    def _task(self, record: Mapping[str, Any]) -> Task:
        first, *others = record["question"]
        classes = class_names(record)
        apis = {
            "classes": classes,
            "configuration": record["initial_config"],
            "tools": record.get("tools") or [tool for name in classes for tool in _declared(name)],
            "long_context": self._category == "long_context" and not self._path,
        }
        turns = ["\n".join(str(message["content"]) for message in turn) for turn in others]
        return Task(
            id=str(record["id"]),
            domain="bfcl/file" if self._path else f"bfcl/{self._category}",
            instruction=tuple(first),
            verifier="simulated_apis",
            environment="tools",
            tools=("simulated_apis",),
            budget=Budget(steps=self._steps),
            metadata={APIS: apis, USER_TURNS: turns, "calls": record["ground_truth"]},
        )


def _declared(name: str) -> list[dict[str, Any]]:
    """The public methods of a class as tools, by their signatures."""
    methods = inspect.getmembers(apis.get(name)(), predicate=inspect.ismethod)
    return [declared_function(method) for key, method in methods if not key.startswith("_")]


def _packaged(category: str) -> Iterator[dict[str, Any]]:
    """The records of the package, with their answers, classes and tools."""
    folder = PACKAGES.folder() / "data"
    file = f"BFCL_v4_multi_turn_{category}.json"
    answers = {r["id"]: r["ground_truth"] for r in read_records("bfcl", str(folder / "possible_answer" / file))}
    for record in read_records("bfcl", str(folder / file)):
        classes = record["involved_classes"]
        left_out = set(record.get("excluded_function") or ())
        tools = [
            declared(doc["name"], doc["description"], _schema(doc["parameters"]))
            for name in classes
            for doc in read_records("bfcl", str(folder / "multi_turn_func_doc" / f"{_module(name)}.json"))
            if doc["name"] not in left_out
        ]
        yield {**record, "classes": classes, "tools": tools, "ground_truth": answers[record["id"]]}


def _module(name: str) -> str:
    """The last part of the name of a class's module, by which the package names its documents."""
    return apis.path(name).partition(":")[0].rpartition(".")[2]


def _schema(value: Any) -> Any:
    """A schema of the leaderboard, whose types are Python's, as a JSON schema."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    schema = {key: _schema(item) for key, item in value.items()}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        schema["type"] = _TYPES[kind]
        if schema["type"] is None:
            del schema["type"]
    return schema
