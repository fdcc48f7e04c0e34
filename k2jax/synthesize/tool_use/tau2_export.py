"""Domain folders in the format of tau2 (Barres et al., 2025), in which its package works, see ``tau2_domain``.

A folder has ``db.json`` (no records: every task brings its own), ``policy.md``, ``tasks.json``, ``split_tasks.json``,
and ``world.json`` with the tools, which are data. Its check is stricter than the verifier of worlds: the state has to
be the reference's in every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import json
from pathlib import Path
import re
from typing import Any

from k2jax.agents.split import split_of
from k2jax.files.atomic import write_atomic
from k2jax.synthesize.stages import Record

WORLD, DATABASE, POLICY, TASKS, SPLITS = "world.json", "db.json", "policy.md", "tasks.json", "split_tasks.json"
_INSTRUCTIONS = (
    "Say what you know when you are asked for it, and not all at once. Invent nothing. End when all is done."
)


def export_tau2(folder: Path, records: Iterable[Record]) -> int:
    """Writes a domain folder for every world.

    Args:
        folder: of the domains.
        records: of the stage ``tasks``.

    Returns:
        The number of domains.
    """
    domains: dict[str, list[Record]] = {}
    for record in records:
        domains.setdefault(record["world"]["name"], []).append(record)
    for name, tasks in domains.items():
        world = tasks[0]["world"]
        place = folder / (re.sub(r"\W+", "_", name) or "_")
        ids = [record["id"] for record in tasks]
        splits = {"base": ids, **{split: [one for one in ids if split_of(one) == split] for split in ("train", "test")}}
        _write(place / WORLD, world)
        _write(place / DATABASE, {"state": {collection: {} for collection in world["collections"]}})
        write_atomic(place / POLICY, world["policy"] + "\n")
        _write(place / TASKS, [_task(record) for record in tasks])
        _write(place / SPLITS, splits)
    return len(domains)


def _write(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _task(record: Record) -> dict[str, Any]:
    task: Mapping[str, Any] = record["task"]
    user = task["user"]
    facts = [fact["text"] for fact in user.get("facts", ())]
    return {
        "id": record["id"],
        "description": {"purpose": " ".join(task["rubric"]), "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": user.get("persona") or None,
            "instructions": {
                "domain": record["world"]["name"],
                "reason_for_call": user["opening"],
                "known_info": "\n".join(facts) or None,
                "unknown_info": None,
                "task_instructions": _INSTRUCTIONS,
            },
        },
        "initial_state": {"initialization_data": {"agent_data": {"state": task["state"]}}},
        "evaluation_criteria": {
            "actions": [
                {"action_id": f"{record['id']}_{number}", "name": name, "arguments": arguments, "info": None}
                for number, (name, arguments) in enumerate(task["calls"])
            ],
            "communicate_info": [str(told) for told in task["told"]],
            "nl_assertions": list(task["rubric"]),
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }
