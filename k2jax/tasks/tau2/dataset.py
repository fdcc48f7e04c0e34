"""The tasks of tau2 (Barres et al. 2025) at a service desk, with a user who follows a script.

The user first says all that tau2's scenario tells its simulated user, and confirms what is asked after that. So no
other model is needed, and an episode is the same at every replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import json
from pathlib import Path
from typing import Any

from k2jax.agents.environment import Message
from k2jax.agents.environments.tools import USER_TURNS
from k2jax.agents.scripted import called, play_actions, said
from k2jax.agents.split import Split
from k2jax.agents.task import Budget, Task
from k2jax.errors import UserError
from k2jax.tasks.tau2.desks import Domain, domain_folder, read_json
from k2jax.tasks.tau2.mock import POLICY, mock_records
from k2jax.tasks.tau2.toolset import DESK

BASIS = ("DB", "COMMUNICATE")
"""What is rewarded where a record does not say it."""
_JUDGED = {"DB", "ENV_ASSERTION", "ACTION", "COMMUNICATE"}
_CONFIRMED = "Yes, please. Do it now if it is not done yet."


class Tau2Tasks:
    """Requests of users; the domain is ``tau2/`` and the desk's name."""

    def __init__(
        self,
        domain: Domain = "mock",
        path: str = "",
        *,
        turns: int = 1,
        steps: int = 60,
        count: int = 100,
        seed: int = 0,
        split: Split = "train",
    ):
        """A set of tasks.

        Args:
            domain: whose tools the desk has.
            path: folder with ``tasks.json``, ``db.json``, ``policy.md`` and perhaps ``split_tasks.json`` of tau2's
                form; by default those of the package, and for ``mock`` generated tasks.
            turns: how often the user confirms, after answers without a call; after one more the user is gone.
            steps: of an episode, see ``Budget``.
            count: number of generated tasks; others are all of the file's.
            seed: of generated tasks.
            split: ``train`` or ``test``, by the folder's own division; without one its tasks are all of each.
        """
        if turns < 0 or count < 1:
            raise UserError("tau2: turns must not be negative, and count must be positive")
        self._domain, self._split, self._turns, self._steps = domain, split, turns, steps
        self._generated = (count, seed) if domain == "mock" and not path else None
        self._folder = "" if self._generated else path or domain_folder(domain)

    def load(self) -> Iterator[Task]:
        """The tasks in order.

        Raises:
            UserError: a file cannot be read, or a record is no task, or one that only another model could judge.
        """
        policy, records = self._source()
        for record in records:
            try:
                yield self._task(policy, record)
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(f"tau2: the record {record.get('id')!r} is no task: {error!r}") from None

    def _source(self) -> tuple[str, Sequence[Mapping[str, Any]]]:
        """The policy and the records of the split."""
        if self._generated:
            return POLICY, mock_records(*self._generated, self._split)
        folder = Path(self._folder).expanduser()
        records = read_json(self._folder, "tasks.json")
        if (folder / "split_tasks.json").exists():
            division = read_json(self._folder, "split_tasks.json")
            if self._split in division:
                records = [record for record in records if record["id"] in set(division[self._split])]
        try:
            return (folder / "policy.md").read_text(encoding="utf-8"), records
        except OSError as error:
            raise UserError(f"tau2: cannot read policy.md in {self._folder}: {error.strerror}") from None

    def _task(self, policy: str, record: Mapping[str, Any]) -> Task:
        criteria = {key: value for key, value in (record.get("evaluation_criteria") or {}).items() if value}
        basis = criteria.get("reward_basis", BASIS)
        actions = criteria.get("actions", ())
        if not set(basis) <= _JUDGED or any(action.get("requestor", "assistant") != "assistant" for action in actions):
            raise UserError(f"tau2: the record {record['id']!r} has users with tools or judges in words; leave it out")
        initial = {key: value for key, value in (record.get("initial_state") or {}).items() if value}
        said_before = [_message(message) for message in initial.get("message_history", ())]
        notes = {
            "role": "user",
            "content": f"My notes for this call:\n{_notes(record['user_scenario']['instructions'])}",
        }
        expected = {
            "actions": [
                {key: action[key] for key in ("name", "arguments", "compare_args") if action.get(key) is not None}
                for action in actions
            ],
            "assertions": criteria.get("env_assertions", []),
            "communicate": criteria.get("communicate_info", []),
            "basis": list(basis),
        }
        return Task(
            id=str(record["id"]),
            domain=f"tau2/{self._domain}",
            instruction=({"role": "system", "content": policy}, *said_before, notes),
            verifier="tau2",
            environment="tools",
            tools=("tau2",),
            budget=Budget(steps=self._steps),
            metadata={
                DESK: {"domain": self._domain, "folder": self._folder, "initial": initial},
                USER_TURNS: [_CONFIRMED] * self._turns,
                "expected": expected,
            },
        )


def _notes(instructions: Any) -> str:
    """What a scenario tells the user, as text."""
    if isinstance(instructions, str):
        return instructions
    parts = (instructions.get(key) for key in ("reason_for_call", "known_info", "unknown_info", "task_instructions"))
    return "\n".join(part for part in parts if part and part != ".")


def _message(message: Mapping[str, Any]) -> Message:
    """A message of tau2's form in OpenAI's."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["id"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for call in message.get("tool_calls") or ()
    ]
    return {
        "role": message["role"],
        "content": message.get("content") or "",
        **({"tool_calls": calls} if calls else {}),
    }


def reference_service(task: Task, messages: Sequence[Message]) -> Message:
    """The oracle: the reference's calls, one in each message, then what is to be told, and a word to every turn after.

    Where there are only assertions on the state, a tool of the mock desk makes each of them true.
    """
    expected = task.metadata["expected"]
    calls = [(action["name"], action["arguments"]) for action in expected["actions"]]
    if not calls and expected["assertions"]:
        statuses = [assertion["arguments"] for assertion in expected["assertions"]]
        calls = [
            ("update_task_status", {"task_id": made["task_id"], "status": made["expected_status"]}) for made in statuses
        ]
    told = ". ".join(["It is done", *expected["communicate"]])
    actions = [called(name, **arguments) for name, arguments in calls] + [said(told)]
    ours = messages[len(task.instruction) :]
    return play_actions([*actions, *[said("You are welcome.")] * len(messages)], ours)
