"""Generated tasks of tau2's form for the mock desk: users whose tasks are created, completed and counted."""

from __future__ import annotations

import json
import random
from typing import Any

from k2jax.agents.split import Split, split_of

POLICY = """You work at a service desk for lists of tasks.

- You create tasks for users, and change the status of a task to pending or completed, with your tools and no others.
- Users know themselves by their name. Look up the user's id before you create a task.
- You cannot delete or rename anything. Whoever wants that is transferred to a human agent.
- Do what the user asks for and nothing else, then tell the user what is done."""
"""What the agent is told first."""
_NAMES = ("Ana", "Ben", "Chen", "Dina", "Emil", "Fatma", "Goran", "Hana", "Ivo", "Jun", "Kira", "Luis")
_THINGS = (
    "the report",
    "the lamps",
    "the train tickets",
    "the garden",
    "the invoices",
    "the slides",
    "the old bicycle",
)
_DEEDS = ("Order", "Check", "Repair", "Photograph", "Describe", "Sort", "Paint")


def mock_records(count: int, seed: int, split: Split) -> list[dict[str, Any]]:
    """So many records of a split, which differ in what is asked or in the database."""
    rng, records = random.Random(f"{seed} {split}"), {}
    while len(records) < count:
        record = _record(rng)
        if split_of(record["user_scenario"]["instructions"]) == split:
            records.setdefault(json.dumps(record), {"id": f"{split}/seed{seed}/{len(records)}", **record})
    return list(records.values())


def _record(rng: random.Random) -> dict[str, Any]:
    """One task over a database of its own."""
    database = _database(rng)
    user = rng.choice(list(database["users"].values()))
    kind = rng.choice((_create, _complete, _count, _delete))
    request, criteria = kind(rng, database, user)
    return {
        "user_scenario": {"instructions": f"You are {user['name']}. {request}"},
        "initial_state": {"initialization_data": {"agent_data": database}},
        "evaluation_criteria": criteria,
    }


def _database(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(2, 4))
    ids = [f"user_{number}" for number in range(1, len(names) + 1)]
    users = {user: {"user_id": user, "name": name, "tasks": []} for user, name in zip(ids, names, strict=True)}
    tasks = {}
    for number in range(1, rng.randint(3, 8) + 1):
        task = f"task_{number}"
        tasks[task] = {"task_id": task, "title": _title(rng), "description": None, "status": "pending"}
        rng.choice(list(users.values()))["tasks"].append(task)
    return {"tasks": tasks, "users": users}


def _title(rng: random.Random) -> str:
    return f"{rng.choice(_DEEDS)} {rng.choice(_THINGS)}"


def _look() -> dict[str, Any]:
    return {"name": "get_users", "arguments": {}}


def _create(rng: random.Random, database: Any, user: Any) -> tuple[str, dict[str, Any]]:
    title = _title(rng)
    action = {"name": "create_task", "arguments": {"user_id": user["user_id"], "title": title}}
    return f"You want a new task with the title '{title}'.", {"actions": [_look(), action]}


def _complete(rng: random.Random, database: Any, user: Any) -> tuple[str, dict[str, Any]]:
    task = rng.choice(list(database["tasks"]))
    action = {"name": "update_task_status", "arguments": {"task_id": task, "status": "completed"}}
    return f"You have done {task}, and want its status to say so.", {"actions": [action]}


def _count(rng: random.Random, database: Any, user: Any) -> tuple[str, dict[str, Any]]:
    told = f"{len(user['tasks'])} tasks"
    request = "You want to know how many tasks you have. You ask for an answer such as '7 tasks'."
    return request, {"actions": [_look()], "communicate_info": [told]}


def _delete(rng: random.Random, database: Any, user: Any) -> tuple[str, dict[str, Any]]:
    task = rng.choice(list(database["tasks"]))
    summary = {"summary": f"{user['name']} wants {task} to be deleted."}
    action = {"name": "transfer_to_human_agents", "arguments": summary, "compare_args": []}
    return f"You want {task} to be deleted.", {"actions": [action], "reward_basis": ["DB", "ACTION"]}
