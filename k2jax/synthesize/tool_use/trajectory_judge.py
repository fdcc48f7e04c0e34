"""The judge of whole trajectories: the rubric point by point with evidence, and who is to blame.

An agent's failure drops a trajectory as bad; a user's or a tool's drops it as void, since nothing is to be learnt of
it. Wherever a world's state says what was reached, the judge's verdict stands beside the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
from typing import Any

from k2jax.agents.task import Task
from k2jax.synthesize.asking import Asker
from k2jax.synthesize.stages import Made, Record
from k2jax.synthesize.tools.domain_worlds import Work
from k2jax.tasks.worlds.dialogue import USER
from k2jax.tasks.worlds.goals import EXPECTED, GoalReport, report_of
from k2jax.tasks.worlds.world_tools import told_world, world_of

BLAMED = ("nobody", "agent", "user", "tool")
_REASONS = {"agent": "the agent failed", "user": "void: the user failed", "tool": "void: a tool failed"}
_POINT = {
    "type": "object",
    "required": ["point", "met", "turns"],
    "properties": {
        "point": {"type": "integer"},
        "met": {"type": "boolean"},
        "turns": {"type": "array", "items": {"type": "integer"}},
    },
}
_SCHEMA = {
    "type": "object",
    "required": ["points", "blame"],
    "properties": {"points": {"type": "array", "items": _POINT}, "blame": {"enum": list(BLAMED)}},
}


def judged() -> Work:
    """The stage that asks a judge about a dialogue, and keeps what is right."""

    async def work(record: Record, asker: Asker) -> Made:
        task, dialogue = Task.from_json(record["task_json"]), record["dialogue"]
        rubric = record["task"]["rubric"]
        report = exact_report(task, dialogue)
        exact = {"solved": report.solved, "blame": blamed(task, dialogue, report), **report._asdict()}
        points = "\n".join(f"{number}. {point}" for number, point in enumerate(rubric))
        text = (
            f"A conversation at a service desk, turn by turn:\n{transcript(dialogue['messages'])}\n\nWhat "
            f"is looked for:\n{points}\n\nSay of every point by its number whether it is met, and in which turns "
            "that is seen. If the user did not get what it wanted, say who is to blame: the agent; the user, if it "
            'left or kept back what it knew; or a tool that failed. Answer with JSON: {"points": [{"point": number, '
            '"met": true or false, "turns": [numbers]}], "blame": "nobody", "agent", "user" or "tool"}.'
        )
        inputs = {"exact": exact, "rubric": rubric, "messages": dialogue["messages"]}
        asked = [{"role": "user", "content": text}]
        verdict = await asker.ask_object("judge", "verdict", asked, _SCHEMA, inputs=inputs)
        met = {point["point"] for point in verdict["points"] if point["met"]}
        is_good = verdict["blame"] == "nobody" and met >= set(range(len(rubric)))
        judged = {**record, "verdict": verdict, "exact": exact}
        if is_good:
            return Made([judged])
        return Made([], [(_REASONS.get(verdict["blame"], "a point is not met"), judged)])

    return work


def exact_report(task: Task, dialogue: Mapping[str, Any]) -> GoalReport:
    """What the world says of a dialogue."""
    left = dialogue["left"]
    if not left:
        return GoalReport(0.0, 0.0, 1.0)
    world = world_of({**told_world(task), "state": left["state"]}, 0)
    said = [message for message in dialogue["messages"] if message["role"] == "assistant"]
    return report_of(task.metadata[EXPECTED], world, left["calls"], said)


def blamed(task: Task, dialogue: Mapping[str, Any], report: GoalReport) -> str:
    """Who is to blame for what was not reached: a user who kept back what it knew, a lost answer, or else the agent."""
    if report.solved:
        return "nobody"
    left = dialogue["left"] or {"told": [], "calls": []}
    facts = {fact["text"] for fact in task.metadata[USER]["facts"]}
    said = " ".join(str(message.get("content")) for message in dialogue["messages"] if message["role"] == "user")
    has_left = dialogue["messages"][-1]["role"] == "assistant" and dialogue["status"] == "finished"
    if has_left and not all(fact in said for fact in facts) and report.goal < 1:
        return "user"
    lost = [fate for _, _, fate, error in left["calls"] if fate == "timeout" and error]
    return "tool" if lost and report.obeyed == 1 else "agent"


def transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    """The conversation as text, with the numbers of its turns."""
    lines = []
    for number, message in enumerate(messages):
        calls = [
            f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()
        ]
        content = message.get("content") or ""
        text = content if isinstance(content, str) else json.dumps(content)
        lines.append(f"[{number}] {message['role']}: {' '.join([text, *calls]).strip()}")
    return "\n".join(lines)
