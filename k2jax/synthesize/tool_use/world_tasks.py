"""Tasks with rubrics: a state, a user with wishes, and what the world has to be like in the end, all of it checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k2jax.errors import UserError
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.tasks.worlds.grammar import TaskDraft, is_solvable
from k2jax.tasks.worlds.users import UserSpec
from k2jax.tasks.worlds.world import SimulatedWorld
from k2jax.tasks.worlds.world_spec import WorldSpec, read_world

_TEXTS = {"type": "array", "items": {"type": "string"}}
_SCHEMA = {
    "type": "object",
    "required": ["state", "user", "goal", "told", "forbidden", "calls", "rubric"],
    "properties": {
        "state": {"type": "object"},
        "user": {"type": "object"},
        "goal": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "told": _TEXTS,
        "forbidden": _TEXTS,
        "calls": {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
        "rubric": {**_TEXTS, "minItems": 1},
    },
}


def tasks(tasks: int, wishes: int) -> Work:
    """The stage that asks for so many tasks of an agent, and drops those that cannot be solved with its tools."""

    async def work(record: Record, asker: Asker) -> Made:
        spec = read_world(record["world"])
        made = Made([], [])
        for number in range(tasks):
            most = 1 + number % wishes  # from simple to complex
            text = (
                f"{spec.description}\nRules:\n{spec.policy}\nCollections:\n{spec.collections}\nTools:\n"
                f"{[tool for tool in spec.tools if tool['name'] in record['tools']]}\n\nWrite task {number + 1}: "
                f"first records (state), a user with {most} wishes (opening, facts that it tells when asked, as "
                '{"about": [words], "text": ...}), the conditions that hold in the end (goal), texts that the agent '
                "has to say (told), tools that it must not use (forbidden), the calls of a solution ([name, arguments])"
                " and what a judge looks for (rubric). Answer with a JSON object of these keys."
            )
            inputs = {**record, "number": number, "wishes": most}
            asked = [{"role": "user", "content": text}]
            answer = await asker.ask_object("writer", "task", asked, _SCHEMA, inputs=inputs)
            task = {**record, "id": f"{record['name']}/{number}", "number": number, "task": answer}
            reason = _mistake(spec, answer, record["tools"])
            made.dropped.append((reason, task)) if reason else made.kept.append(task)
        return made

    return work


def draft_of(answer: Mapping[str, Any]) -> TaskDraft:
    """The task of a writer's answer.

    Raises:
        UserError: its user cannot be read.
    """
    expected = {name: answer[name] for name in ("goal", "told", "forbidden", "calls")}
    user = UserSpec.from_json(answer["user"])
    return TaskDraft(answer["state"], user, expected, answer["rubric"], answer.get("wishes", 1))


def _mistake(spec: WorldSpec, answer: Mapping[str, Any], tools: list[str]) -> str:
    """Why a task leaves; empty where it is solvable and not solved from the beginning."""
    try:
        draft = draft_of(answer)
        world = SimulatedWorld(spec, draft.state)
        if any(name not in tools for name, _ in draft.expected["calls"]):
            return "needs tools that the agent has not"
        if not is_solvable(spec, draft):
            return "not solvable"
        done = all(world.reached(draft.expected["goal"]))
    except (UserError, KeyError, TypeError, ValueError, AttributeError):
        return "no task of this world"
    return "" if not done or draft.expected["told"] else "solved from the beginning"
