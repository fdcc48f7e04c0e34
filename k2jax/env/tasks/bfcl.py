"""The multi-turn tasks of the Berkeley function-calling leaderboard (Patil et al. 2025), on simulated APIs.

The data and the classes come from the package ``bfcl-eval``; other files of the same format name their own classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
import importlib.util
import inspect
from pathlib import Path
from typing import Any, Literal

from k2jax.env.split import Split
from k2jax.env.task import Budget, Task
from k2jax.env.tasks.records import read_records
from k2jax.env.tasks.simulated_apis import APIS
from k2jax.env.tool_environment import USER_TURNS
from k2jax.env.toolsets.functions import declared_function
from k2jax.env.toolsets.types import declared
from k2jax.errors import UserError, abbreviate

_SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


class BFCLTasks:
    """Requests of several turns, for evaluation alone; the domain is ``bfcl/`` and the category."""

    def __init__(
        self,
        category: Literal["base", "miss_param", "long_context"] = "base",
        path: str = "",
        modules: tuple[str, ...] = (),
        steps: int = 60,
        split: Split = "train",
    ):
        """A set of tasks.

        Args:
            category: of the package's tasks.
            path: JSONL instead, of records with ``id``, ``question`` (messages of each turn), ``initial_config``,
                ``ground_truth`` (calls of each turn, written as Python) and ``classes`` (``module:class`` by name).
            modules: those of your own whose classes such records may name. They run in this process, and a record
                that could name any would run anything.
            steps: calls of the model in an episode.
            split: ``test``; there is nothing to train on, but for a file of your own, which is all of ``train`` too.

        Raises:
            UserError: the split is ``train``, and there is no path.
        """
        if split != "test" and not path:
            raise UserError("bfcl is for evaluation alone: all of its tasks are held out; use the split test")
        self._category, self._path, self._steps = category, path, steps
        self._modules = frozenset((*modules, *(f"{_SOURCE}.{module}" for module in _MODULES.values())))

    def load(self) -> Iterator[Task]:
        """The tasks in the order of the file.

        Raises:
            UserError: the file or the package cannot be read, or a record is no task.
        """
        for record in read_records("bfcl", self._path) if self._path else _packaged(self._category):
            try:
                yield self._task(record)
            except (KeyError, TypeError, IndexError, ImportError, AttributeError) as error:
                raise UserError(f"bfcl: the record {record.get('id')!r} is no task: {error!r}") from None

    def _task(self, record: Mapping[str, Any]) -> Task:
        first, *others = record["question"]
        classes = dict(record["classes"])
        for path in classes.values():
            self._check_class(record, path)
        apis = {
            "classes": classes,
            "configuration": record["initial_config"],
            "tools": record.get("tools") or [tool for path in classes.values() for tool in _declared(path)],
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

    def _check_class(self, record: Mapping[str, Any], path: str) -> None:
        """Raises UserError where a record names what is no class of a module that may be imported."""
        module, _, name = path.partition(":")
        if module not in self._modules:
            raise UserError(
                f"bfcl: the record {record.get('id')!r} names {abbreviate(path)}, and its classes are run here; where "
                f"you trust that module, name it in the option modules"
            )
        made = getattr(import_module(module), name)
        if not isinstance(made, type) or made.__module__ != module:
            raise UserError(f"bfcl: the record {record.get('id')!r} names {abbreviate(path)}, no class of that module")


def _declared(path: str) -> list[dict[str, Any]]:
    """The public methods of a class as tools, by their signatures."""
    module, _, name = path.partition(":")
    made = getattr(import_module(module), name)()
    methods = inspect.getmembers(made, predicate=inspect.ismethod)
    return [declared_function(method) for key, method in methods if not key.startswith("_")]


def _packaged(category: str) -> Iterator[dict[str, Any]]:
    """The records of the package, with their answers, classes and tools."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.origin:
        raise UserError("bfcl needs its package: pip install --no-deps bfcl-eval, and pip install mpmath")
    folder = Path(spec.origin).parent / "data"
    file = f"BFCL_v4_multi_turn_{category}.json"
    answers = {r["id"]: r["ground_truth"] for r in read_records("bfcl", str(folder / "possible_answer" / file))}
    for record in read_records("bfcl", str(folder / file)):
        classes = {name: f"{_SOURCE}.{_MODULES[name]}:{name}" for name in record["involved_classes"]}
        left_out = set(record.get("excluded_function") or ())
        tools = [
            declared(doc["name"], doc["description"], _schema(doc["parameters"]))
            for name in classes
            for doc in read_records("bfcl", str(folder / "multi_turn_func_doc" / f"{_MODULES[name]}.json"))
            if doc["name"] not in left_out
        ]
        yield {**record, "classes": classes, "tools": tools, "ground_truth": answers[record["id"]]}


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
